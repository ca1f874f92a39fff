//! A cleartext HTTP/2 client with access to single frames of its streams.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use h2::{
    RecvStream, SendStream,
    client::{ResponseFuture, SendRequest},
};
use hyper::{HeaderMap, Request, http::response::Parts};
use tokio::{net::TcpStream, time::timeout};

/// The time limit for anything to arrive.
const COMES_WITHIN: Duration = Duration::from_secs(60);

/// A connection.
pub(crate) struct Client(SendRequest<Bytes>);

/// Runs a test, and fails if it doesn't end in time.
pub(crate) fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { timeout(COMES_WITHIN, test).await.expect("the test ends in time") });
}

/// Connects to a gateway.
pub(crate) async fn connect(gateway: SocketAddr) -> Client {
    let stream = TcpStream::connect(gateway).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (sender, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    Client(sender.ready().await.unwrap())
}

impl Client {
    /// Begins a request with these fields. Its body follows, if it has one.
    pub(crate) fn begin(
        &mut self,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
        has_body: bool,
    ) -> (ResponseFuture, SendStream<Bytes>) {
        let mut request = Request::builder().method(method).uri(format!("http://tollgate.test{path}"));
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        self.0.send_request(request.body(()).unwrap(), !has_body).unwrap()
    }

    /// Returns the beginning of the response to a GET.
    pub(crate) async fn get(&mut self, path: &str) -> (Parts, RecvStream) {
        let (response, _) = self.begin("GET", path, &[], false);
        response.await.unwrap().into_parts()
    }

    /// Returns the beginning of the response to a gRPC call with one message and these additional fields.
    pub(crate) async fn call(&mut self, path: &str, fields: &[(&str, &str)]) -> (Parts, RecvStream) {
        let (response, mut body) =
            self.begin("POST", path, &[&[("content-type", "application/grpc")], fields].concat(), true);
        // The answer may be there already, and the request be reset with it.
        let _ = body.send_data(Bytes::from_static(b"\0\0\0\0\x02hi"), true);
        response.await.unwrap().into_parts()
    }
}

/// Reads a body up to its end, if it ends, and its trailers.
pub(crate) async fn whole(mut body: RecvStream) -> Result<(Vec<u8>, Option<HeaderMap>), h2::Error> {
    let mut whole = Vec::new();
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        whole.extend(data);
    }
    Ok((whole, body.trailers().await?))
}
