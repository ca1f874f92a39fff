//! Connections to servers other than upstreams, such as a management server or a token issuer, and the pauses before they are
//! asked again.

use std::{error, io, iter, sync::Arc, time::Duration};

use rustls::pki_types::ServerName;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tollgate_http1::Stream;
use tollgate_limiter::ClientTls;

use crate::{config::ServerUrl, keepalive};

/// Opens a connection, with TLS if there are settings for it. `protocol` is the name by which TLS agrees on it (ALPN).
///
/// # Errors
/// The server can't be reached, or isn't the one of the URL.
pub(crate) async fn connect(
    url: &ServerUrl,
    tls: Option<&ClientTls>,
    protocol: &[u8],
) -> io::Result<Box<dyn Stream>> {
    let (host, port) = match url {
        ServerUrl::Unix(path) => return Ok(Box::new(UnixStream::connect(path).await?)),
        ServerUrl::Tcp { host, port, .. } => (host, *port),
    };
    let stream = TcpStream::connect((host.as_str(), port)).await?;
    stream.set_nodelay(true)?;
    keepalive::enable(&stream)?;
    let Some(tls) = tls else { return Ok(Box::new(stream)) };
    let mut client = tls.client().map_err(io::Error::other)?;
    client.alpn_protocols = vec![protocol.to_vec()];
    let name = tls.server_name.clone().map_or_else(|| ServerName::try_from(host.clone()), Ok);
    let name = name.map_err(io::Error::other)?;
    Ok(Box::new(TlsConnector::from(Arc::new(client)).connect(name, stream).await?))
}

/// Returns an error with its causes, since hyper's errors don't say what has happened.
pub(crate) fn with_causes(error: &(dyn error::Error + 'static)) -> String {
    let causes = iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Pauses that double, up to the longest.
pub(crate) struct Pauses {
    /// The upper bound of the first pause.
    pub(crate) first: Duration,
    /// The upper bound of any pause.
    pub(crate) most: Duration,
}

impl Pauses {
    /// Returns the pause after so many failures before: at random between half of it and all, so that not all clients come back
    /// at once.
    pub(crate) fn after(&self, failures: u32) -> Duration {
        let whole = self.first.saturating_mul(1 << failures.min(16)).min(self.most);
        whole.mul_f64(0.5 + fastrand::f64() / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let pauses = Pauses { first: Duration::from_millis(500), most: Duration::from_secs(30) };
        for (failures, most_ms) in [(0, 500), (1, 1_000), (3, 4_000), (6, 30_000), (u32::MAX, 30_000)] {
            let most = Duration::from_millis(most_ms);
            for _ in 0..100 {
                let pause = pauses.after(failures);
                assert!((most / 2..=most).contains(&pause), "{failures}: {pause:?}");
            }
        }
    }
}
