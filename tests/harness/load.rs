//! Clients that ask one request after the other until they are told to end.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use super::{gateway::Gateway, wait_until};

/// Clients that are running.
pub(crate) struct Load {
    ends: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    clients: Vec<JoinHandle<Vec<Duration>>>,
}

impl Load {
    /// Starts so many clients, each on a connection of its own. The path may
    /// change as it runs.
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
                let mut took = Vec::new();
                while !ends.load(SeqCst) {
                    let since = Instant::now();
                    client.get(&path());
                    took.push(since.elapsed());
                    answered.fetch_add(1, SeqCst);
                }
                took
            })
        });
        let clients = clients.collect();
        Self { ends, answered, clients }
    }

    /// Waits for so many more answers.
    pub(crate) fn wait_for(&self, answers: usize) {
        let goal = self.answered.load(SeqCst) + answers;
        wait_until("requests are answered", || self.answered.load(SeqCst) >= goal);
    }

    /// Ends it, and tells how long each answer took.
    pub(crate) fn end(self) -> Vec<Duration> {
        self.ends.store(true, SeqCst);
        self.clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    }
}
