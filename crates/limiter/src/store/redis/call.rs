//! A call of the script: EVALSHA, and where the server doesn't know it, EVAL.

use bytes::Bytes;
use fred::{
    error::Error,
    types::{ClusterHash, CustomCommand, Value},
};
use tokio::time::{Duration, Instant};

use crate::store::script::{self, Call, ScriptReply};

use super::{
    StoreError,
    batcher::SendMode,
    connection::{CONNECT_TIMEOUT, Connection, SHORTEST_WAIT, failure},
};

/// The failure of a call.
pub(super) struct FailedCall {
    pub(super) error: StoreError,
    /// The reply that doesn't count, because the replicas don't have what it says.
    pub(super) reply: Option<ScriptReply>,
}

impl From<StoreError> for FailedCall {
    fn from(error: StoreError) -> Self {
        Self { error, reply: None }
    }
}

impl From<FailedCall> for StoreError {
    fn from(failed: FailedCall) -> Self {
        failed.error
    }
}

/// The answer to a command, and the error if the replicas don't have what it wrote.
pub(super) type Answered = (Value, Option<Error>);

/// Runs the script once, and says what it answered. `sent` is the time, which callers have just read. What is seldom done is on the
/// heap, since the task of a call is copied when it is made.
pub(super) async fn run(
    connection: &Connection,
    call: &Call,
    mode: SendMode,
    sent: Instant,
    timeout: Duration,
) -> Result<ScriptReply, FailedCall> {
    let (keys, list) = call.encode();
    let sha = Bytes::from_static(script::SHA.as_bytes());
    let source = Bytes::from_static(script::SOURCE.as_bytes());
    let by_sha = send(connection, mode, "EVALSHA", values(sha, &keys, list.clone()), timeout).await;
    let answer = match by_sha {
        // Nothing ran. EVAL loads the script, too.
        Err(error) if error.details().starts_with("NOSCRIPT") => {
            let took = sent.elapsed();
            let left = timeout.saturating_sub(took);
            if left < took.max(SHORTEST_WAIT) {
                // The answer to another call would come too late. The next ones find the script.
                let (keys, list) = Call::default().encode();
                let load = send(connection, mode, "EVAL", values(source, &keys, list), CONNECT_TIMEOUT);
                drop(Box::pin(load).await);
                return Err(StoreError::Timeout.into());
            }
            Box::pin(send(connection, mode, "EVAL", values(source, &keys, list), left)).await
        }
        answer => answer,
    };
    let (answer, unconfirmed) = answer.map_err(failure)?;
    let reply = read(&answer).ok_or(StoreError::Malformed)?;
    match unconfirmed {
        None => Ok(reply),
        Some(error) => Err(FailedCall { error: failure(error), reply: Some(reply) }),
    }
}

async fn send(
    connection: &Connection,
    mode: SendMode,
    name: &'static str,
    arguments: Vec<Value>,
    wait: Duration,
) -> Result<Answered, Error> {
    let command = CustomCommand::new_static(name, ClusterHash::FirstKey, false);
    let answer = match mode {
        SendMode::Together | SendMode::OfKind(_) | SendMode::Alone => match &connection.replicas {
            None => connection.send(command, arguments, wait).await,
            Some(replicas) => return Box::pin(replicas.send(connection, command, arguments, wait)).await,
        },
        SendMode::Asking => Box::pin(connection.send_asking(command, arguments, wait)).await,
    };
    answer.map(|answer| (answer, None))
}

fn values(script: Bytes, keys: &[Bytes], list: Bytes) -> Vec<Value> {
    let mut values = Vec::with_capacity(3 + keys.len());
    values.push(Value::Bytes(script));
    values.push(Value::Integer(keys.len() as i64));
    values.extend(keys.iter().cloned().map(Value::Bytes));
    values.push(Value::Bytes(list));
    values
}

/// Reads an answer. The client takes for text what is UTF-8.
pub(crate) fn read(answer: &Value) -> Option<ScriptReply> {
    match answer {
        Value::Bytes(reply) => ScriptReply::read(reply),
        Value::String(reply) => ScriptReply::read(reply.as_bytes()),
        _ => None,
    }
}
