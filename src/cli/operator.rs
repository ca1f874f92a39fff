//! Requests of commands to the admin port of a running gateway.

use std::{env, error::Error, net::SocketAddr, path::PathBuf, process::ExitCode, time::Duration};

use bytes::Bytes;
use clap::Args;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Method, Request, StatusCode,
    client::conn::http1,
    header::{AUTHORIZATION, CONTENT_TYPE, HOST},
};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{net::TcpStream, time::timeout};

use crate::config::{Config, FlagOverrides, ListenAddress};

use super::{complain, fail, say_aside};

const TIMEOUT: Duration = Duration::from_secs(10);
const ANSWER_BYTES_MOST: usize = 64 << 20;

/// The address of the admin port.
#[derive(Debug, Args)]
pub(super) struct AdminPort {
    /// URL of the admin port, such as http://127.0.0.1:9901; overrides the file's
    #[arg(long, value_name = "URL", global = true)]
    admin: Option<String>,
    /// Configuration file, also for the admin port and its token (TOLLGATE_ADMIN_TOKEN overrides the file's token; with --admin, the file isn't read for it)
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
        let answer = send(&server, token.as_deref(), call)
            .and_then(|(status, body)| Ok((status, serde_json::from_slice(&body)?)));
        let (status, answer) = answer.map_err(|error| unreachable(&server, &*error))?;
        if status.is_success() {
            return Ok(answer);
        }
        fail(answer["detail"].as_str().unwrap_or("the admin port rejected the request"));
        show_faults(&answer["faults"]);
        Err(if status == StatusCode::UNPROCESSABLE_ENTITY { ExitCode::from(2) } else { ExitCode::FAILURE })
    }

    /// Asks for readiness: at the admin port, or without one at the main listener's `server.health`. Returns true if the gateway
    /// is ready, and the text of the response.
    ///
    /// # Errors
    /// The exit status, after the error has been printed.
    pub(super) fn probe(&self) -> Result<(bool, String), ExitCode> {
        let (server, token, path) = match self.main_listener()? {
            Some((server, path)) => (server, None, path),
            None => {
                let (server, token) = self.server()?;
                (server, token, "/readyz".to_owned())
            }
        };
        let call = AdminCall { method: Method::GET, path, body: String::new() };
        let (status, body) =
            send(&server, token.as_deref(), call).map_err(|error| unreachable(&server, &*error))?;
        Ok((status.is_success(), String::from_utf8_lossy(&body).into_owned()))
    }

    /// Returns the address and path of readiness on the main listener, if the file has no admin port and this one speaks plain HTTP.
    fn main_listener(&self) -> Result<Option<(String, String)>, ExitCode> {
        if self.admin.is_some() {
            return Ok(None);
        }
        let config = self.read()?;
        let tcp = config.server.listen.iter().find_map(|address| match address {
            ListenAddress::Tcp(address) => Some(local(*address).to_string()),
            ListenAddress::Unix(_) => None,
        });
        let is_usable = config.admin.is_none() && config.server.tls.is_none();
        Ok(tcp
            .zip(config.server.health)
            .filter(|_| is_usable)
            .map(|(server, path)| (server, path.to_string())))
    }

    fn read(&self) -> Result<Config, ExitCode> {
        let read = Config::read(&self.config, &FlagOverrides::default());
        read.map(|(config, _)| config).map_err(|faults| {
            complain(&faults);
            ExitCode::from(2)
        })
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
        let Some(admin) = self.read()?.admin else {
            let file = self.config.display();
            fail(&format!(
                "`{file}` has no table [admin]: add it with listen = \"127.0.0.1:9901\", or use --admin URL"
            ));
            return Err(ExitCode::from(2));
        };
        Ok((
            local(admin.listen).to_string(),
            token.or(admin.tokens.admin.map(|token| token.as_str().to_owned())),
        ))
    }
}

/// Returns the address at which this machine reaches a listener.
fn local(listen: SocketAddr) -> SocketAddr {
    if listen.ip().is_unspecified() { SocketAddr::from(([127, 0, 0, 1], listen.port())) } else { listen }
}

/// Prints the errors of a configuration that the gateway rejected.
fn show_faults(faults: &Value) {
    for fault in faults.as_array().map(Vec::as_slice).unwrap_or_default() {
        let file = fault["file"].as_str().map(|file| format!("{file}: ")).unwrap_or_default();
        let line = fault["line"].as_u64().map(|line| format!("line {line}: ")).unwrap_or_default();
        fail(&format!("{file}{line}{}", fault["message"].as_str().unwrap_or_default()));
        let help = fault["help"].as_array().map(Vec::as_slice).unwrap_or_default();
        help.iter().filter_map(Value::as_str).for_each(|help| say_aside(format_args!("  help: {help}\n")));
    }
}

fn unreachable(server: &str, error: &dyn Error) -> ExitCode {
    fail(&format!("can't reach the gateway at `{server}`: {error}"));
    ExitCode::FAILURE
}

/// Sends a request. Returns the status and the body of the response.
fn send(server: &str, token: Option<&str>, call: AdminCall) -> Result<(StatusCode, Bytes), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answer = runtime.block_on(async { timeout(TIMEOUT, exchange(server, token, call)).await });
    answer.unwrap_or_else(|_| Err("no response in time".into()))
}

async fn exchange(
    server: &str,
    token: Option<&str>,
    call: AdminCall,
) -> Result<(StatusCode, Bytes), Box<dyn Error>> {
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
    let status = response.status();
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MOST).collect().await;
    Ok((status, body.map_err(|error| error.to_string())?.to_bytes()))
}
