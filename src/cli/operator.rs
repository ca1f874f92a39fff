//! Requests of commands to the admin port of a running gateway.

use std::{env, error::Error, net::SocketAddr, path::PathBuf, process::ExitCode, time::Duration};

use bytes::Bytes;
use clap::Args;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Method, Request,
    client::conn::http1,
    header::{AUTHORIZATION, CONTENT_TYPE, HOST},
};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{net::TcpStream, time::timeout};

use crate::config::{Config, FlagOverrides};

use super::{complain, fail};

const TIMEOUT: Duration = Duration::from_secs(10);
const ANSWER_BYTES_MOST: usize = 64 << 20;

/// The address of the admin port.
#[derive(Debug, Args)]
pub(super) struct AdminPort {
    /// URL of the admin port, such as http://127.0.0.1:9901; overrides the file's
    #[arg(long, value_name = "URL", global = true)]
    admin: Option<String>,
    /// Configuration file, also for the admin port and its token (TOLLGATE_ADMIN_TOKEN overrides the file's token)
    #[arg(long, value_name = "FILE", default_value = "gateway.toml", global = true)]
    pub(super) config: PathBuf,
}

/// A request to the admin port.
pub(super) struct AdminCall {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) body: String,
}

impl AdminPort {
    /// Sends a request and returns the JSON of the response.
    ///
    /// # Errors
    /// The exit status, after the error has been printed.
    pub(super) fn ask(&self, call: AdminCall) -> Result<Value, ExitCode> {
        let (server, token) = self.server()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let answer = runtime.map_err(Into::into).and_then(|runtime| {
            let answer =
                runtime.block_on(async { timeout(TIMEOUT, send(&server, token.as_deref(), call)).await });
            answer.unwrap_or_else(|_| Err("no response in time".into()))
        });
        match answer {
            Ok((true, answer)) => return Ok(answer),
            Ok((false, problem)) => {
                fail(problem["detail"].as_str().unwrap_or("the admin port rejected the request"));
            }
            Err(error) => fail(&format!("can't reach the gateway at `{server}`: {error}")),
        }
        Err(ExitCode::FAILURE)
    }

    /// Returns the address of the admin port and its token.
    fn server(&self) -> Result<(String, Option<String>), ExitCode> {
        let token = env::var("TOLLGATE_ADMIN_TOKEN").ok();
        if let Some(url) = &self.admin {
            let server = url.strip_prefix("http://").map(|server| server.trim_end_matches('/'));
            return match server.filter(|server| !server.is_empty() && !server.contains('/')) {
                Some(server) => Ok((server.to_owned(), token)),
                None => {
                    fail(&format!("`{url}` is not a valid admin URL: write http://127.0.0.1:9901"));
                    Err(ExitCode::from(2))
                }
            };
        }
        let (config, _) = Config::read(&self.config, &FlagOverrides::default()).map_err(|faults| {
            complain(&faults);
            ExitCode::from(2)
        })?;
        let Some(admin) = config.admin else {
            let file = self.config.display();
            fail(&format!(
                "`{file}` has no table [admin]: add it with listen = \"127.0.0.1:9901\", or use --admin URL"
            ));
            return Err(ExitCode::from(2));
        };
        let mut address = admin.listen;
        if address.ip().is_unspecified() {
            address = SocketAddr::from(([127, 0, 0, 1], address.port()));
        }
        Ok((address.to_string(), token.or(admin.tokens.admin.map(|token| token.as_str().to_owned()))))
    }
}

/// Sends a request. Returns true if it succeeded, and the JSON of the response.
async fn send(server: &str, token: Option<&str>, call: AdminCall) -> Result<(bool, Value), Box<dyn Error>> {
    let stream = TcpStream::connect(server).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let mut request = Request::builder()
        .method(call.method)
        .uri(call.path)
        .header(HOST, server)
        .header(CONTENT_TYPE, "application/json");
    if let Some(token) = token {
        request = request.header(AUTHORIZATION, format!("Bearer {token}"));
    }
    let response = sender.send_request(request.body(Full::new(Bytes::from(call.body)))?).await?;
    let is_success = response.status().is_success();
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MOST).collect().await;
    let body = body.map_err(|error| error.to_string())?.to_bytes();
    Ok((is_success, serde_json::from_slice(&body)?))
}
