//! Clients that send one request after another until they are stopped.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use super::{gateway::Gateway, wait_until};

/// Running clients.
pub(crate) struct Load {
    ends: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    clients: Vec<JoinHandle<Vec<Answered>>>,
}

/// A request with its response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answered {
    pub(crate) sent: Instant,
    pub(crate) received: Instant,
    pub(crate) status: u16,
}

impl Answered {
    pub(crate) fn took(&self) -> Duration {
        self.received - self.sent
    }
}

/// Returns the most requests that were certainly decided within one window, wherever it begins.
pub(crate) fn most_within(admitted: &[Answered], window: Duration) -> usize {
    // A window with the most in it begins where one of them was sent.
    let counts = admitted.iter().map(|first| {
        let end = first.sent + window;
        admitted.iter().filter(|other| other.sent >= first.sent && other.received < end).count()
    });
    counts.max().unwrap_or(0)
}

impl Load {
    /// Starts clients, each on its own connection. The path may change while they
    /// run.
    pub(crate) fn start(
        gateway: &Gateway,
        clients: usize,
        path: impl Fn() -> String + Clone + Send + 'static,
    ) -> Self {
        let (ends, answered) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let clients = (0..clients).map(|_| {
            let (ends, answered, path) = (ends.clone(), answered.clone(), path.clone());
            let mut client = gateway.client();
            thread::spawn(move || {
                let mut answers = Vec::new();
                while !ends.load(SeqCst) {
                    let sent = Instant::now();
                    let status = client.get(&path()).status;
                    answers.push(Answered { sent, received: Instant::now(), status });
                    answered.fetch_add(1, SeqCst);
                }
                answers
            })
        });
        let clients = clients.collect();
        Self { ends, answered, clients }
    }

    /// Waits for this many more responses.
    pub(crate) fn wait_for(&self, answers: usize) {
        let goal = self.answered.load(SeqCst) + answers;
        wait_until("requests are answered", || self.answered.load(SeqCst) >= goal);
    }

    /// Returns the number of responses.
    pub(crate) fn answered(&self) -> usize {
        self.answered.load(SeqCst)
    }

    /// Stops the clients, and returns all responses.
    pub(crate) fn end(self) -> Vec<Answered> {
        self.ends.store(true, SeqCst);
        self.clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    }
}
