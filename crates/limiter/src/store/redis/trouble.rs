//! What is wrong with a server, as the log says it: now and then, and not at each attempt.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use bytes::Bytes;
use fred::error::{Error, ErrorKind};
use parking_lot::Mutex;

use super::Operation;
use crate::algorithm::Quota;

/// Causes that are told in that time, each once: they may take turns, also with calls that succeed.
const SAID_MOST: usize = 16;
const SAY_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// Characters of a cause that are told: a server may say anything.
const CHARACTERS_MOST: usize = 200;

/// The remedies for causes that contain these words.
const REMEDIES: [(&str, &str); 13] = [
    (
        "another layout than Redisson",
        "update the services with an older Redisson, then delete the limiter's keys",
    ),
    ("NOAUTH", "write its password in `store.url`"),
    ("WRONGPASS", "mend the user or the password in `store.url`"),
    (
        "NOPERM",
        "give the user the rights that docs/configuration.md lists, and docs/redisson.md for Redisson's limiters",
    ),
    ("can't run this command", "give the user the rights that docs/configuration.md lists"),
    ("no permissions to run the", "give the user the rights that docs/configuration.md lists"),
    ("READONLY", "it has become a replica: write the primary's address in `store.url`, or redis-sentinel://"),
    ("OOM", "raise its maxmemory"),
    ("WRONGTYPE", "somebody else has written it: delete it, or write another `store.key_prefix`"),
    ("the bucket is not", "somebody else has written it: delete it, or write another `store.key_prefix`"),
    ("UnknownIssuer", "name the authority of its certificate in `store.tls`"),
    ("NotValidForName", "write the name in its certificate as `server_name` in `store.tls`"),
    ("Expired", "renew its certificate"),
];

/// The troubles of a server that were logged.
pub(super) struct Trouble {
    server: String,
    said: Mutex<Vec<(String, Instant)>>,
}

impl Trouble {
    pub(super) fn with(server: String) -> Self {
        Self { server, said: Mutex::default() }
    }

    /// Says it, unless that has been said lately, or the same with other numbers: times, lines, ports.
    pub(super) fn say(&self, trouble: &str) {
        let without_numbers = trouble.replace(|character: char| character.is_ascii_digit(), "");
        let mut said = self.said.lock();
        said.retain(|(_, at)| at.elapsed() < SAY_AGAIN_AFTER);
        if said.len() < SAID_MOST && said.iter().all(|(text, _)| *text != without_numbers) {
            tracing::warn!(server = self.server, "the store: {trouble}");
            said.push((without_numbers, Instant::now()));
        }
    }

    /// Logs an error of the server or of the connection, and the remedy if there is a plain one.
    pub(super) fn say_error(&self, error: &Error) {
        self.say_cause(&told(error));
    }

    /// Logs an error that a command met, and what can't be done because of it.
    pub(super) fn say_error_with(&self, effect: &str, error: &Error) {
        self.say_cause(&format!("{effect}: {}", told(error)));
    }

    /// Logs an error that a single operation met, with the names of its limits.
    pub(super) fn say_error_of(&self, operation: &Operation, error: &Error) {
        let is_javas = |quota: &Quota| quota.algorithm.is_changed_by_others();
        let limit = |(bucket, quota): (&Bytes, &Quota)| match is_javas(quota) {
            // Its name may be a client's key.
            true => "a limiter of Redisson".to_owned(),
            // What follows is a client's key.
            false => String::from_utf8_lossy(bucket).split('{').next().unwrap_or_default().to_owned(),
        };
        let limits: Vec<String> = operation.buckets().map(limit).collect();
        self.say_cause(&format!("{} of a key `{}…`", told(error), limits.join("…`, `")));
    }

    /// Logs that a service which shares a limiter has a clock that is wrong.
    pub(super) fn say_ahead(&self, ahead_ms: u64) {
        self.say(&format!(
            "Java's grants of a limiter of Redisson are {ahead_ms} ms ahead of its clock: they count for that much longer, and \
             Java frees the grants of others too early (set the clock of the Java services by NTP)"
        ));
    }

    fn say_cause(&self, cause: &str) {
        match REMEDIES.iter().find(|(words, _)| cause.contains(words)) {
            Some((_, remedy)) => self.say(&format!("{cause} ({remedy})")),
            None => self.say(cause),
        }
    }

    /// Forgets what was logged, so that it is news if it comes again.
    pub(super) fn forget(&self) {
        self.said.lock().clear();
    }
}

/// Requests that the store hasn't answered in time, as the log says it: now and then.
#[derive(Default)]
pub(super) struct Late {
    requests: AtomicU64,
    said_at: Mutex<Option<Instant>>,
}

impl Late {
    /// Counts one. Returns how many are to be logged now, if it is time to.
    pub(super) fn note(&self) -> Option<u64> {
        self.requests.fetch_add(1, Relaxed);
        let mut said_at = self.said_at.lock();
        if said_at.is_some_and(|at| at.elapsed() < SAY_AGAIN_AFTER) {
            return None;
        }
        *said_at = Some(Instant::now());
        Some(self.requests.swap(0, Relaxed))
    }
}

/// Returns the text of an error in one short line, without keys of clients.
pub(super) fn told(error: &Error) -> String {
    let told = match error.kind() {
        ErrorKind::Unknown | ErrorKind::Auth | ErrorKind::Cluster | ErrorKind::InvalidArgument => {
            format!("it says `{}`", error.details())
        }
        kind => format!("{}: {}", kind.to_str(), plainly(error.details())),
    };
    // After this, Redis repeats what it was asked.
    let told = told.split(", with args beginning with").next().unwrap_or_default();
    let one_line = told.chars().map(|character| if character.is_control() { ' ' } else { character });
    one_line.take(CHARACTERS_MOST).collect()
}

/// Returns the message in the `Debug` output of an error of the system or of TLS, which is all that the client keeps of it.
fn plainly(details: &str) -> &str {
    let message = details.split_once("message: \"").and_then(|(_, rest)| rest.split_once('"'));
    let error = details.split_once("error: ").and_then(|(_, rest)| rest.rsplit_once('}'));
    match (message, error) {
        (Some((message, _)), _) => message,
        (_, Some((error, _))) => error.trim().trim_matches('"'),
        _ => details,
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn answer(details: String) -> Error {
        Error::new(ErrorKind::Unknown, details)
    }

    #[test]
    fn no_key_of_a_client_is_told_and_no_line_is_endless() {
        let unknown = "ERR unknown command 'EVALSHA', with args beginning with: 'sha' '1' 't:l:{alice}'";
        assert_eq!(told(&answer(unknown.to_owned())), "it says `ERR unknown command 'EVALSHA'");
        let lines = answer(format!("ERR one\nINFO two {}", "é".repeat(100_000)));
        assert!(told(&lines).starts_with("it says `ERR one INFO two é"));
        assert_eq!(told(&lines).chars().count(), CHARACTERS_MOST);
    }

    #[test]
    fn errors_of_the_system_are_told_without_their_debug_output() {
        let refused = io::Error::from_raw_os_error(111);
        assert_eq!(told(&Error::from(refused)), "IO Error: Connection refused");
        let broken = io::Error::other("it broke");
        assert_eq!(told(&Error::from(broken)), "IO Error: it broke");
    }

    #[test]
    fn a_cause_is_said_once_whatever_its_numbers() {
        let trouble = Trouble::with("server".to_owned());
        for line in 0..100 {
            trouble.say_error(&answer(format!("ERR at line {line}")));
        }
        assert_eq!(trouble.said.lock().len(), 1);
        trouble.say_error(&answer("ERR elsewhere".to_owned()));
        assert_eq!(trouble.said.lock().len(), 2);
    }
}
