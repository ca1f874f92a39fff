//! A subscription to a channel, on a connection of its own that is always restored.

use std::time::Duration;

use bytes::Bytes;
use fred::{
    interfaces::{ClientLike, EventInterface, PubsubInterface},
    types::{
        Value,
        config::{Config, Options},
    },
};
use tokio::{
    sync::{broadcast::error::RecvError, mpsc},
    time::sleep,
};

use super::connection::{CONNECT_TIMEOUT, Connection};

/// Messages that can wait for a subscriber.
const MESSAGES_MOST: usize = 64;
/// The pause after a connection has ended.
pub(super) const RECONNECT_EVERY: Duration = Duration::from_millis(200);

/// The messages of a channel, from the server that `server` names at the time.
pub(super) fn subscribe(
    channel: String,
    server: impl Fn() -> Config + Send + 'static,
) -> mpsc::Receiver<Bytes> {
    let (sender, receiver) = mpsc::channel(MESSAGES_MOST);
    tokio::spawn(async move {
        while !sender.is_closed() {
            let server = server();
            tokio::select! {
                () = listen(&channel, &server, &sender) => {}
                () = sender.closed() => return,
            }
            sleep(RECONNECT_EVERY).await;
        }
    });
    receiver
}

/// Passes messages on until the connection ends.
pub(super) async fn listen(channel: &str, server: &Config, sender: &mpsc::Sender<Bytes>) {
    let mut connection = Connection::once(server);
    let mut messages = connection.client.message_rx();
    if connection.made().await.is_err() {
        return;
    }
    let options = Options { timeout: Some(CONNECT_TIMEOUT), max_attempts: Some(1), ..Options::default() };
    if connection.client.with_options(&options).subscribe(channel).await.is_err() {
        return;
    }
    loop {
        let message = tokio::select! {
            message = messages.recv() => message,
            _ = &mut connection.task => return,
        };
        match message {
            Ok(message) => {
                let text = match message.value {
                    Value::Bytes(bytes) => bytes,
                    Value::String(text) => text.into_inner(),
                    _ => continue,
                };
                if sender.send(text).await.is_err() {
                    return;
                }
            }
            // More were said than anybody wanted to hear.
            Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}
