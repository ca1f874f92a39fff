//! An upstream: a real server in the test's process, which keeps what it was asked.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex},
    thread,
};

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use hyper::{
    Request, Response, body::Incoming, http::request::Parts, server::conn::http1, service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

/// A body of an answer.
pub(crate) type Body = BoxBody<Bytes, Infallible>;

/// A server that answers by a function. It ends with the test's process.
pub(crate) struct Upstream {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<Parts>>>,
}

impl Upstream {
    /// Answers 200 with a short text.
    pub(crate) fn hello() -> Self {
        Self::start(|_| async { Response::new(whole("hello")) })
    }

    /// Answers with the request's body, as it streams in.
    pub(crate) fn mirror() -> Self {
        use http_body_util::BodyExt;
        Self::start(|request| async {
            let body = request.into_body();
            Response::new(BodyExt::boxed(body.map_err(|error| panic!("the body broke off: {error}"))))
        })
    }

    /// Answers by a function.
    pub(crate) fn start<F>(answer: impl Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Response<Body>> + Send + 'static,
    {
        let requests = Arc::new(Mutex::new(Vec::new()));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let seen = requests.clone();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener).unwrap();
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    stream.set_nodelay(true).unwrap();
                    let (answer, seen) = (answer.clone(), seen.clone());
                    let service = service_fn(move |request: Request<Incoming>| {
                        let (parts, body) = request.into_parts();
                        seen.lock().unwrap().push(parts.clone());
                        let answered = answer(Request::from_parts(parts, body));
                        async { Ok::<_, Infallible>(answered.await) }
                    });
                    tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
                }
            });
        });
        Self { address, requests }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// How many requests have reached it.
    pub(crate) fn count(&self) -> usize {
        self.requests.lock().unwrap().len()
    }

    /// How many requests of this kind have reached it.
    pub(crate) fn seen(&self, is_meant: impl Fn(&Parts) -> bool) -> usize {
        self.requests.lock().unwrap().iter().filter(|parts| is_meant(parts)).count()
    }

    /// The newest request that has reached it.
    pub(crate) fn last(&self) -> Parts {
        self.requests.lock().unwrap().last().expect("a request has reached the upstream").clone()
    }
}

/// A body that is sent whole.
pub(crate) fn whole(text: impl Into<Bytes>) -> Body {
    BoxBody::new(http_body_util::Full::new(text.into()))
}
