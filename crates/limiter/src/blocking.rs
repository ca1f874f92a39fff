//! A limiter for threads without an async runtime: it has one of its own.
//!
//! Most of this file is examples: each item that users of the library call has one.

use std::{future::Future, mem, ops::Deref, sync::Arc, thread, time::Duration};

use tokio::{
    runtime::{Builder, Handle},
    sync::oneshot,
    task::yield_now,
    time::{Instant, timeout},
};

use crate::{Admission, Ask, Asks, Counted, KeyState, Limiter, Rate, Refusal, StoreError, StoreSettings};

/// The longest time for which a limiter that is dropped waits for what it still has to tell the store.
const FLUSHED_WITHIN: Duration = Duration::from_secs(1);

/// A [`Limiter`] for threads without an async runtime. It has a thread of its own, which asks the store for all threads.
///
/// Its methods block, and panic if they are called within an async runtime: use [`Limiter`] there.
///
/// # Examples
///
/// ```
/// use std::{sync::Arc, time::Duration};
/// use tollgate_limiter::{Ask, BlockingLimiter, Limit, Rate};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = BlockingLimiter::connect("memory:")?; // or "redis://127.0.0.1:6379", with the feature `redis`
/// let mails = Arc::new(Limit::new("mails", "2/50ms".parse::<Rate>()?));
/// let ask = Ask::new(&mails, "alice");
///
/// limiter.try_acquire(&ask)?;
/// limiter.try_acquire(&ask)?;
/// assert!(limiter.try_acquire(&ask).is_err());
/// limiter.acquire(&ask, Some(Duration::from_secs(1)))?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct BlockingLimiter {
    limiter: Arc<Limiter>,
    thread: Arc<LimiterThread>,
}

impl BlockingLimiter {
    /// Opens the store at a URL, as [`Limiter::connect`] does.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::{BlockingLimiter};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = BlockingLimiter::connect("memory:")?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The URL is invalid. The error says how to fix it, and contains no password.
    ///
    /// # Panics
    /// If the system gives no thread.
    pub fn connect(url: &str) -> Result<Self, StoreError> {
        Self::open(&StoreSettings::at(url).map_err(StoreError::Url)?)
    }

    /// Opens the store with these settings, as [`Limiter::open`] does.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate_limiter::{BlockingLimiter, StoreSettings};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let settings = StoreSettings { timeout: Duration::from_millis(20), ..StoreSettings::at("memory:")? };
    /// let limiter = BlockingLimiter::open(&settings)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The URL is invalid for the client.
    ///
    /// # Panics
    /// If the system gives no thread.
    pub fn open(settings: &StoreSettings) -> Result<Self, StoreError> {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime can be built");
        let limiter = runtime.block_on(async { Limiter::open(settings) })?;
        let (handle, flushed) = (runtime.handle().clone(), limiter.clone());
        let (running, ended) = oneshot::channel::<()>();
        let run = move || {
            runtime.block_on(async {
                let _ = ended.await;
                // Admissions that were dropped just now are given back first.
                yield_now().await;
                let _ = timeout(FLUSHED_WITHIN, flushed.flush()).await;
            });
        };
        let thread = thread::Builder::new().name("tollgate-limiter".to_owned());
        let thread = thread.spawn(run).expect("the system gives a thread");
        let thread = LimiterThread { runtime: handle, running: Some(running), thread: Some(thread) };
        Ok(Self { limiter, thread: Arc::new(thread) })
    }

    /// Admits a request or refuses it at once, as [`Limiter::try_acquire`] does.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, BlockingLimiter, Limit, Rate};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = BlockingLimiter::connect("memory:")?;
    /// # let logins = Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?));
    /// let alice = Ask::new(&logins, "alice");
    /// assert_eq!(limiter.try_acquire(&alice)?.remaining(), Some(4));
    /// assert!(limiter.try_acquire(alice.cost(5)).is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The refusal.
    pub fn try_acquire(&self, asks: impl AsRef<[Ask]>) -> Result<BlockingAdmission, Refusal> {
        self.acquire(asks, Some(Duration::ZERO))
    }

    /// Admits a request as [`Limiter::acquire`] does: it waits for its room, if that comes in time. Without a time it waits
    /// until it is served.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// # use tollgate_limiter::{Ask, BlockingLimiter, Limit, Rate};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = BlockingLimiter::connect("memory:")?;
    /// let mails = Arc::new(Limit::new("mails", "1/50ms".parse::<Rate>()?));
    /// let ask = Ask::new(&mails, "alice");
    /// limiter.acquire(&ask, None)?; // however long it takes
    /// limiter.acquire(&ask, Some(Duration::from_secs(1)))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The refusal.
    pub fn acquire(
        &self,
        asks: impl AsRef<[Ask]>,
        within: Option<Duration>,
    ) -> Result<BlockingAdmission, Refusal> {
        let asks: Asks = asks.as_ref().iter().cloned().collect();
        // One that is too far away is none.
        let deadline = within.and_then(|within| Instant::now().checked_add(within));
        let admission = self.run(async move |limiter| match within {
            Some(Duration::ZERO) => limiter.try_acquire(asks).await,
            _ => limiter.acquire(asks, deadline).await,
        })?;
        Ok(BlockingAdmission { admission, thread: self.thread.clone() })
    }

    /// Looks up the use of a key's permits, as [`Limiter::peek`] does.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, BlockingLimiter, Limit, Rate};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = BlockingLimiter::connect("memory:")?;
    /// # let logins = Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?));
    /// let alice = Ask::new(&logins, "alice");
    /// assert_eq!(limiter.peek(&alice)?.remaining(), 5);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The store gives no answer.
    pub fn peek(&self, ask: &Ask) -> Result<KeyState, StoreError> {
        let ask = ask.clone();
        self.run(async move |limiter| limiter.peek(&ask).await)
    }

    /// Forgets what was counted for a key, as [`Limiter::reset`] does.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, BlockingLimiter, Limit, Rate};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = BlockingLimiter::connect("memory:")?;
    /// # let logins = Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?));
    /// let alice = Ask::new(&logins, "alice");
    /// limiter.try_acquire(alice.clone().cost(5))?;
    /// limiter.reset(&alice)?;
    /// limiter.try_acquire(&alice)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The store gives no answer: it may or may not have forgotten.
    pub fn reset(&self, ask: &Ask) -> Result<(), StoreError> {
        let ask = ask.clone();
        self.run(async move |limiter| limiter.reset(&ask).await)
    }

    /// Sets the rate of a key, as [`Limiter::set_rate`] does.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, BlockingLimiter, Counted, Limit, Rate};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = BlockingLimiter::connect("memory:")?;
    /// # let logins = Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?));
    /// let alice = Ask::new(&logins, "alice");
    /// limiter.set_rate(&alice, "50/min".parse()?, Counted::Kept)?;
    /// assert_eq!(limiter.peek(&alice)?.remaining(), 50);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of the method there.
    pub fn set_rate(&self, ask: &Ask, rate: Rate, counted: Counted) -> Result<(), StoreError> {
        let ask = ask.clone();
        self.run(async move |limiter| limiter.set_rate(&ask, rate, counted).await)
    }

    /// Sets the rate of a key unless one is set, as [`Limiter::set_rate_if_absent`] does.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, BlockingLimiter, Limit, Rate};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = BlockingLimiter::connect("memory:")?;
    /// # let logins = Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?));
    /// let alice = Ask::new(&logins, "alice");
    /// assert!(limiter.set_rate_if_absent(&alice, "50/min".parse()?)?);
    /// assert!(!limiter.set_rate_if_absent(&alice, "60/min".parse()?)?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of the method there.
    pub fn set_rate_if_absent(&self, ask: &Ask, rate: Rate) -> Result<bool, StoreError> {
        let ask = ask.clone();
        self.run(async move |limiter| limiter.set_rate_if_absent(&ask, rate).await)
    }

    /// Changes the rate of a key if one is set, as [`Limiter::update_rate`] does.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, BlockingLimiter, Counted, Limit, Rate};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = BlockingLimiter::connect("memory:")?;
    /// # let logins = Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?));
    /// let alice = Ask::new(&logins, "alice");
    /// assert!(!limiter.update_rate(&alice, "50/min".parse()?, Counted::Kept)?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of the method there.
    pub fn update_rate(&self, ask: &Ask, rate: Rate, counted: Counted) -> Result<bool, StoreError> {
        let ask = ask.clone();
        self.run(async move |limiter| limiter.update_rate(&ask, rate, counted).await)
    }

    /// Runs anything else that a [`Limiter`] can do.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tollgate_limiter::{Ask, BlockingLimiter, Limit, Rate};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = BlockingLimiter::connect("memory:")?;
    /// let ask = Ask::new(&Arc::new(Limit::new("mails", "2/s".parse::<Rate>()?)), "alice");
    /// assert!(!limiter.run(async move |limiter| limiter.delete(&ask).await)?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// If it is called within an async runtime, or if the function panics.
    pub fn run<R, F>(&self, act: impl FnOnce(Arc<Limiter>) -> F) -> R
    where
        R: Send + 'static,
        F: Future<Output = R> + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        let acted = act(self.limiter.clone());
        self.thread.runtime.spawn(async move { answer.send(acted.await) });
        answered.blocking_recv().expect("the limiter's thread answers")
    }
}

/// The thread of a limiter. It ends with the last value that needs it.
#[derive(Debug)]
struct LimiterThread {
    runtime: Handle,
    /// Ends the thread when it is dropped.
    running: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Drop for LimiterThread {
    fn drop(&mut self) {
        drop(self.running.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// An [`Admission`] that a thread without a runtime holds.
///
/// # Examples
///
/// ```
/// # use std::sync::Arc;
/// # use tollgate_limiter::{Ask, BlockingLimiter, Limit, Rate};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let limiter = BlockingLimiter::connect("memory:")?;
/// # let logins = Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?));
/// let alice = Ask::new(&logins, "alice");
/// let admission = limiter.try_acquire(&alice)?;
/// assert_eq!(admission.remaining(), Some(4));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct BlockingAdmission {
    admission: Admission,
    thread: Arc<LimiterThread>,
}

impl BlockingAdmission {
    /// Records permits beyond those that the request was admitted for, as [`Admission::record`] does.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, BlockingLimiter, Limit, Rate};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = BlockingLimiter::connect("memory:")?;
    /// # let logins = Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?));
    /// let alice = Ask::new(&logins, "alice");
    /// let admission = limiter.try_acquire(alice.clone().settled_later(1))?;
    /// admission.record("logins", 2);
    /// assert_eq!(limiter.peek(&alice)?.used(), 3);
    /// # Ok(())
    /// # }
    /// ```
    pub fn record(&self, limit: &str, cost: u32) {
        let _runtime = self.thread.runtime.enter();
        self.admission.record(limit, cost);
    }
}

impl Deref for BlockingAdmission {
    type Target = Admission;

    fn deref(&self) -> &Admission {
        &self.admission
    }
}

impl Drop for BlockingAdmission {
    fn drop(&mut self) {
        // What it holds is given back on the thread that has a connection.
        let admission = mem::take(&mut self.admission);
        if !admission.is_settled() {
            drop(self.thread.runtime.spawn(async move { drop(admission) }));
        }
    }
}
