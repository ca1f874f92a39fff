//! The built-in upstream, which answers with a JSON description of the request.

use http_body_util::BodyExt;
use hyper::{
    Request, Response,
    header::{CONTENT_TYPE, HeaderValue},
};
use serde_json::{Map, Value, json};

use super::{
    Failure,
    body::{Body, Fault},
};

/// Returns the response to a request: a line of JSON.
pub(super) async fn answer(request: Request<Body>) -> Result<Response<Body>, Failure> {
    let (parts, mut body) = request.into_parts();
    // The body is only counted, since echoing an endless body would need endless memory.
    let mut body_bytes = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| {
            let fault = body.progress().and_then(|progress| progress.fault());
            Failure::Request(fault.unwrap_or(Fault::Broken))
        })?;
        body_bytes += frame.data_ref().map_or(0, bytes::Bytes::len);
    }
    let mut headers = Map::new();
    for name in parts.headers.keys() {
        let lines = parts.headers.get_all(name).into_iter();
        let lines: Vec<_> = lines.map(|line| String::from_utf8_lossy(line.as_bytes())).collect();
        headers.insert(name.to_string(), lines.join(", ").into());
    }
    let described = json!({
        "method": parts.method.as_str(),
        "path": parts.uri.path(),
        "query": parts.uri.query(),
        "headers": Value::Object(headers),
        "body_bytes": body_bytes,
    });
    let mut response = Response::new(Body::Whole(Some(format!("{described}\n").into())));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}
