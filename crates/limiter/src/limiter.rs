//! The limiter: takes what a request asks of its limits, all or nothing.
//!
//! Requests come to `Limiter::admit_in_time`, whose documentation lists the steps of a decision in their order. Requests of callers
//! that never wait skip the steps about waiting. A bucket is the count of one limit for one key.
//!
//! All ways in, and the order of the steps, stand in this file. The steps have files of their own.

mod bans;
mod charging;
mod failure;
mod instances;
mod known;
mod operators;
mod outcome;
mod rates;
mod redisson;
mod releasing;
mod reporting;
mod state;
mod waiting;

use std::sync::Arc;

use tokio::time::{Duration, Instant};

use crate::{
    Admission, Ask, Origin, Refusal, Scope, StoreSettings,
    charged_ask::ChargedAsks,
    metrics::{Counts, CountsByWord},
    overrides::Overridden,
    refusals::Refusals,
    store::{Decision, Store, StoreError},
    wait::{Patience, WaitResult, WaitingRequest, Waits},
};

use self::{
    failure::deny,
    instances::KnownInstances,
    outcome::{hold, refused},
    redisson::RedisRates,
};

/// A limiter: decides requests, in a store and in this process. It outlives reloads of the configuration,
/// and may be shared by any threads; each has its own connection to the store.
///
/// # Examples
///
/// Two limits on one user, both charged or neither:
///
/// ```
/// use std::{sync::Arc, time::Duration};
/// use tollgate_limiter::{Ask, Limit, Limiter, Rate};
/// use tokio::time::Instant;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::connect("memory:")?;
/// let burst = Arc::new(Limit::new("burst", "2/100ms".parse::<Rate>()?));
/// let daily = Arc::new(Limit::new("daily", "1000/day".parse::<Rate>()?));
/// let asks = [Ask::new(&burst, "alice"), Ask::new(&daily, "alice")];
///
/// limiter.try_acquire(&asks).await?;
/// limiter.try_acquire(&asks).await?;
/// assert!(limiter.try_acquire(&asks).await.is_err());
///
/// // There will be room within 100 ms.
/// let deadline = Instant::now() + Duration::from_secs(1);
/// let admission = limiter.acquire(&asks, Some(deadline)).await?;
/// assert_eq!(admission.standings()[1].remaining(), Some(997));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Limiter {
    store: Arc<Store>,
    /// In this process: for limits of this instance, and for all while the store is away. It starts empty, and
    /// isn't written back.
    local: Arc<Store>,
    refusals: Arc<Refusals>,
    overridden: Overridden,
    waits: Arc<Waits>,
    timeout: Duration,
    instances: KnownInstances,
    key_prefix: String,
    /// Decisions that the store didn't give.
    failures: CountsByWord,
    /// Decisions by a clock that is a window behind.
    set_back: Counts,
    redis_rates: RedisRates,
}

impl Limiter {
    /// Opens the store at a URL, `redis://127.0.0.1:6379` or `memory:`, with the settings that a file has by
    /// default. Must be called in a tokio runtime. Nothing is connected yet: see [`Self::warm_up`].
    ///
    /// # Errors
    /// The URL is invalid. The error says how to fix it, and contains no password.
    ///
    /// # Examples
    ///
    /// Other settings are given to [`Self::open`]:
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate_limiter::{Limiter, StoreSettings};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = StoreSettings::at("redis://127.0.0.1:6379/2")?;
    /// let settings = StoreSettings { timeout: Duration::from_millis(20), key_prefix: "mine".to_owned(), ..store };
    /// let limiter = Limiter::open(&settings)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn connect(url: &str) -> Result<Arc<Self>, StoreError> {
        Self::open(&StoreSettings::at(url).map_err(StoreError::Url)?)
    }

    /// Opens the store of a configuration. Nothing is connected yet: see [`Self::warm_up`]. Must be called in a
    /// tokio runtime, in which it follows what others change.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::{Limiter, StoreSettings};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = StoreSettings::at("memory:")?;
    /// let limiter = Limiter::open(&StoreSettings { instances: 3, ..store })?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The URL is invalid for the client.
    pub fn open(config: &StoreSettings) -> Result<Arc<Self>, StoreError> {
        let store = Arc::new(Store::open(config)?);
        let local = match &*store {
            Store::Memory(_) => store.clone(),
            Store::Redis(_) => Arc::new(Store::in_process(config.max_memory)),
        };
        let instances = KnownInstances::of(config.instances, &store);
        let limiter = Arc::new(Self {
            store,
            local,
            refusals: Arc::default(),
            overridden: Overridden::new(&config.key_prefix),
            waits: Arc::default(),
            timeout: config.timeout,
            instances,
            key_prefix: config.key_prefix.clone(),
            failures: CountsByWord::of(&StoreError::KINDS),
            set_back: Counts::new(1),
            redis_rates: RedisRates::default(),
        });
        tokio::spawn(Self::follow_changes(Arc::downgrade(&limiter)));
        if limiter.instances().is_none() {
            tokio::spawn(Self::count_instances(Arc::downgrade(&limiter)));
        }
        Ok(limiter)
    }

    /// Admits a request and charges all that it asks, or refuses it and charges nothing. It takes one [`Ask`] or a list of
    /// them, and doesn't overtake requests that wait.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, Limit, Limiter, Rate};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// let logins = Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?));
    /// let alice = Ask::new(&logins, "alice");
    /// let admission = limiter.try_acquire(&alice).await?;
    /// assert_eq!(admission.remaining(), Some(4));
    ///
    /// let refusal = limiter.try_acquire(alice.cost(5)).await.unwrap_err();
    /// println!("{refusal}");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The refusal.
    pub async fn try_acquire(self: &Arc<Self>, asks: impl AsRef<[Ask]>) -> Result<Admission, Refusal> {
        let now = Instant::now();
        self.admit_in_time(asks.as_ref(), now, Some(now), Patience::Until(Some(now)), None).await
    }

    /// Admits a request as [`Self::try_acquire`] does, but waits for its room until the deadline, or if
    /// there is none, until it is served. Requests wait in one queue for each key, and are served in the order of their
    /// arrival. One whose future is dropped while it waits leaves the queue, and is charged nothing; one that is being decided just
    /// then may stay charged.
    ///
    /// A request is refused at once if it would wait in vain: by the deadline there won't be room for it and for the
    /// requests before it, it asks for more than a limit ever allows, or the limit counts requests in flight, and nobody
    /// knows when these end.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::{sync::Arc, time::Duration};
    /// # use tokio::time::Instant;
    /// # use tollgate_limiter::{Ask, Limit, Limiter, Rate};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// let mails = Arc::new(Limit::new("mails", "1/50ms".parse::<Rate>()?));
    /// let ask = Ask::new(&mails, "alice");
    /// limiter.acquire(&ask, None).await?; // however long it takes
    /// limiter.acquire(&ask, Some(Instant::now() + Duration::from_secs(2))).await?;
    /// // There is no room within 1 ms, so it isn't waited for.
    /// assert!(limiter.acquire(&ask, Some(Instant::now() + Duration::from_millis(1))).await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The refusal.
    pub async fn acquire(
        self: &Arc<Self>,
        asks: impl AsRef<[Ask]>,
        deadline: Option<Instant>,
    ) -> Result<Admission, Refusal> {
        let now = Instant::now();
        self.admit_in_time(asks.as_ref(), now, Some(now), Patience::Until(deadline), None).await
    }

    /// Admits a request that arrived at this time. It waits as long as the limits that refuse it allow, counted from its arrival.
    /// It is charged at the time of the decision, however long ago it arrived.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, Limit, Limiter, Rate};
    /// # use std::time::Duration;
    /// # use tokio::time::Instant;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// let limit = Limit::new("mails", "1/50ms".parse::<Rate>()?).wait_at_most(Duration::from_secs(2));
    /// let ask = Ask::new(&Arc::new(limit), "alice");
    /// limiter.acquire_within_waits(&[ask.clone()], Instant::now()).await?;
    /// limiter.acquire_within_waits(&[ask], Instant::now()).await?; // after 50 ms
    /// # Ok(())
    /// # }
    /// ```
    pub fn acquire_within_waits(
        self: &Arc<Self>,
        asks: &[Ask],
        arrival: Instant,
    ) -> impl Future<Output = Result<Admission, Refusal>> {
        self.admit_in_time(asks, arrival, None, Patience::OfLimits(None), None)
    }

    /// Admits a request as [`Self::acquire_within_waits`] does, but doesn't wait beyond `end`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::{sync::Arc, time::Duration};
    /// # use tokio::time::Instant;
    /// # use tollgate_limiter::{Ask, Limit, Limiter, Rate};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// let limit = Limit::new("mails", "1/min".parse::<Rate>()?).wait_at_most(Duration::from_secs(90));
    /// let ask = Ask::new(&Arc::new(limit), "alice");
    /// let (now, end) = (Instant::now(), Some(Instant::now() + Duration::from_secs(2)));
    /// limiter.acquire_within_waits_until(&[ask.clone()], now, end).await?;
    /// assert!(limiter.acquire_within_waits_until(&[ask], now, end).await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn acquire_within_waits_until(
        self: &Arc<Self>,
        asks: &[Ask],
        arrival: Instant,
        end: Option<Instant>,
    ) -> impl Future<Output = Result<Admission, Refusal>> {
        self.admit_in_time(asks, arrival, None, Patience::OfLimits(end), None)
    }

    /// Admits a request as [`Self::try_acquire`] does, for a caller that doesn't wait beyond the deadline. The store's own
    /// deadline holds, too, from the call on. If others wait for the bucket, a refusal may take as much longer, in which the store is
    /// asked when there will be room.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, Limit, Limiter, Rate};
    /// # use std::time::Duration;
    /// # use tokio::time::Instant;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// let ask = Ask::new(&Arc::new(Limit::new("mails", "1/min".parse::<Rate>()?)), "alice");
    /// let now = Instant::now();
    /// limiter.try_acquire_before(&[ask], now, Some(now + Duration::from_millis(20))).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The refusal.
    pub async fn try_acquire_before(
        self: &Arc<Self>,
        asks: &[Ask],
        arrival: Instant,
        deadline: Option<Instant>,
    ) -> Result<Admission, Refusal> {
        self.admit_in_time(asks, arrival, None, Patience::Until(Some(arrival)), deadline).await
    }

    /// Decides a request. It takes these steps, in this order:
    ///
    /// 1. **Does it ever fit?** If it costs more than a quota ever allows, it is refused. Its charges are computed for this
    ///    (`charges_of`).
    /// 2. **Does it wait in line?** If others wait for one of its buckets, it joins their queue, unless it would wait in
    ///    vain, also for another limit: then it is refused (`queue_to_join`, `wait_in_line`).
    /// 3. **Is a bucket known to be full?** What Redis refused lately, or filled to the last permit, is refused without asking
    ///    (`refuse_locally`).
    /// 4. **The store** charges all limits, or none if one of them has no room (`take_from_stores`).
    /// 5. **The failure policy** of each limit decides if the store can't (`take_without_store`).
    /// 6. **It waits for its room**, if it was refused and its patience lasts as long, and is decided again then (`hope`,
    ///    `wait_in_line`, `wait`).
    ///
    /// Only its patience counts from the arrival: a body or the keys of a token may have been waited for since. `now` is the time,
    /// if the caller has just read it. The store must answer before the deadline, and before its own.
    async fn admit_in_time(
        self: &Arc<Self>,
        asks: &[Ask],
        arrival: Instant,
        now: Option<Instant>,
        patience: Patience,
        deadline: Option<Instant>,
    ) -> Result<Admission, Refusal> {
        let now = now.unwrap_or_else(Instant::now);
        let request = || {
            let asks = asks.iter().cloned().collect();
            Arc::new(WaitingRequest { asks, arrival, came: now, patience, deadline })
        };
        let (request, awaited, free_at) = match self.queue_to_join(asks, arrival, patience)? {
            Some(awaited) => (request(), awaited, None),
            None => match self.decide_now(asks, now, self.within_timeout(now, deadline)).await {
                Err(Refusal::Limited(limited)) if patience.outlasts(&limited) => {
                    let request = request();
                    let Some((awaited, free_at)) = self.hope(&request, &limited) else {
                        return Err(Refusal::Limited(limited));
                    };
                    (request, awaited, Some(free_at))
                }
                taken => return taken,
            },
        };
        let mut answer = Box::pin(self.wait_in_line(&request, &awaited, free_at)).await;
        loop {
            let limited = match answer {
                WaitResult::Taken(taken) => return taken,
                WaitResult::Elsewhere(limited) => limited,
            };
            let Some((awaited, free_at)) = self.hope(&request, &limited) else {
                return Err(Refusal::Limited(limited));
            };
            answer = Box::pin(self.wait(&request, &awaited, Some(free_at))).await;
        }
    }

    /// Decides a request that doesn't wait in line: steps 1 and 3 to 5. The store must answer before the deadline.
    async fn decide_now(&self, asks: &[Ask], now: Instant, deadline: Instant) -> Result<Admission, Refusal> {
        let mut asked = self.charges_of(asks)?;
        if let Store::Memory(store) = &*self.store
            && have_shared_scope(&asked)
        {
            // This store answers as fast as anything that is known of it, so there is no step 3.
            return match store.take(&mut asked, now.into_std()) {
                Ok(decision) => self.conclude(&asked, decision),
                Err(error) => self.go_without_store(asked, error, deadline).await,
            };
        }
        // Held until the store has answered: others who ask for a full bucket wait for the answer.
        let _turns = self.refuse_locally(&asked, now, deadline).await?;
        self.take_from_stores(asked, deadline).await
    }

    /// Decides a request that has waited: as [`Self::decide_now`], but the stores are asked in any case.
    async fn decide_awaited(&self, asks: &[Ask], deadline: Instant) -> Result<Admission, Refusal> {
        self.take_from_stores(self.charges_of(asks)?, deadline).await
    }

    /// Asks the store in this process for the limits that count there, then the shared one for the others. What the first
    /// has charged is given back if the second refuses.
    async fn take_from_stores(
        &self,
        asked: ChargedAsks<'_>,
        deadline: Instant,
    ) -> Result<Admission, Refusal> {
        if asked.is_empty() {
            return Ok(Admission::default());
        }
        let is_alone = asked.len() == 1;
        if have_shared_scope(&asked) {
            return self.take_shared(asked, is_alone, deadline).await;
        }
        let (mut own, mut shared): (ChargedAsks<'_>, ChargedAsks<'_>) =
            asked.into_iter().partition(|asked| asked.scope == Scope::Instance);
        let mut own_decision = match self.local.take_placed(&mut own, deadline).await {
            Ok(decision) => decision,
            Err(cause) => return Err(deny(&own, cause, |_| true)),
        };
        if !own_decision.admitted {
            // Boxed, because it is large and rare.
            let limited = Box::pin(self.refuse_beside(&own, &own_decision, &mut shared)).await;
            return Err(Refusal::Limited(limited));
        }
        // From here on the leases end with this future. The permits stay charged if it is dropped.
        let leases = hold(&self.local, &mut own_decision);
        let taken = if shared.is_empty() {
            Ok(Admission::default())
        } else {
            self.take_shared(shared, is_alone, deadline).await
        };
        match taken {
            Ok(mut admission) => {
                admission.leases.extend(leases);
                Ok(self.admit(&self.local, Origin::Store, &own, own_decision, admission))
            }
            Err(refusal) => {
                self.give_back(&own, &own_decision);
                Err(refusal)
            }
        }
    }

    /// Asks the store that gateways share, or lets the failure policy decide.
    async fn take_shared(
        &self,
        mut asked: ChargedAsks<'_>,
        is_alone: bool,
        deadline: Instant,
    ) -> Result<Admission, Refusal> {
        let sent = matches!(*self.store, Store::Redis(_)).then(|| self.refusals.sending());
        match self.store.take_placed(&mut asked, deadline).await {
            Ok(decision) => {
                if let Some(sent) = sent {
                    self.learn(&asked, &decision, sent, is_alone);
                }
                self.conclude(&asked, decision)
            }
            Err(error) => self.go_without_store(asked, error, deadline).await,
        }
    }

    /// Returns the admission or the refusal that the store's decision is.
    fn conclude(&self, asked: &ChargedAsks<'_>, decision: Decision) -> Result<Admission, Refusal> {
        self.note_redis_rates(asked, &decision);
        match decision.admitted {
            true => Ok(self.admit(&self.store, Origin::Store, asked, decision, Admission::default())),
            false => Err(Refusal::Limited(refused(asked, &decision, Origin::Store))),
        }
    }

    /// Lets the failure policy decide. Boxed, because this future is large and rare.
    async fn go_without_store(
        &self,
        asked: ChargedAsks<'_>,
        error: StoreError,
        deadline: Instant,
    ) -> Result<Admission, Refusal> {
        self.failures.add(error.kind());
        Box::pin(self.take_without_store(asked, error, deadline)).await
    }

    /// Returns a caller's deadline for the store, or the store's own if that is earlier.
    fn within_timeout(&self, now: Instant, deadline: Option<Instant>) -> Instant {
        let latest = now + self.timeout;
        deadline.map_or(latest, |deadline| deadline.min(latest))
    }

    /// Returns the store in which limits of this scope count.
    fn store_of(&self, scope: Scope) -> &Arc<Store> {
        match scope {
            Scope::Shared => &self.store,
            Scope::Instance => &self.local,
        }
    }

    /// Returns true if limits of this scope count in Redis.
    fn is_shared(&self, scope: Scope) -> bool {
        scope == Scope::Shared && matches!(*self.store, Store::Redis(_))
    }
}

/// Returns true if no limit counts for this instance alone.
fn have_shared_scope(asked: &ChargedAsks<'_>) -> bool {
    asked.iter().all(|asked| asked.scope == Scope::Shared)
}
