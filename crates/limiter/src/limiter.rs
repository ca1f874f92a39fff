//! The limiter: takes what a request asks of its limits, all or nothing.

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::{Duration, Instant};

use crate::{
    algorithm::{Algorithm, Quota},
    metrics::{Counts, CountsByWord, Page},
    store::{Charge, Decision, NodeState, Outcome, Placed, Store, StoreError, Usage},
};

use crate::{
    Admission, Ask, Limited, OnFailure, Origin, Refusal, Scope, Standing, Standings, StoreSettings,
    admission::{Account, Held},
    asked::{AllAsked, Asked},
    overrides::Overridden,
    refusals::{Refusals, Sending, Turns, Verdict},
    wait::{Patience, Waits},
};

/// Decides what limits are asked, in a store and in this process. It outlives reloads of the configuration,
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
/// assert_eq!(admission.standings()[1].outcome.remaining, 997);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Limiter {
    pub(super) store: Arc<Store>,
    /// In this process: for limits of this instance, and for all while the store is away. It starts empty, and
    /// isn't written back.
    pub(super) local: Arc<Store>,
    pub(super) refusals: Arc<Refusals>,
    pub(super) overridden: Overridden,
    pub(super) waits: Waits,
    timeout: Duration,
    instances: u32,
    key_prefix: String,
    /// Decisions that the store didn't give.
    failures: CountsByWord,
    /// Decisions by a clock that is a window behind.
    set_back: Counts,
}

impl Limiter {
    /// Opens the store at a url, `redis://127.0.0.1:6379` or `memory:`, with the settings that a file has by
    /// default. Must be called in a tokio runtime. Nothing is connected yet: see [`Self::warm_up`].
    ///
    /// # Errors
    /// A url of no store. The error tells what to write, and no password.
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
    /// # Errors
    /// A url that the client can't read.
    pub fn open(config: &StoreSettings) -> Result<Arc<Self>, StoreError> {
        let store = Arc::new(Store::open(config)?);
        let local = match &*store {
            Store::Memory(_) => store.clone(),
            Store::Redis(_) => Arc::new(Store::in_process(config.max_memory)),
        };
        let limiter = Arc::new(Self {
            store,
            local,
            refusals: Arc::default(),
            overridden: Overridden::new(&config.key_prefix),
            waits: Waits::default(),
            timeout: config.timeout,
            instances: config.instances,
            key_prefix: config.key_prefix.clone(),
            failures: CountsByWord::of(&StoreError::KINDS),
            set_back: Counts::new(1),
        });
        tokio::spawn(Self::follow_changes(Arc::downgrade(&limiter)));
        Ok(limiter)
    }

    /// Whether the store can be asked, as far as is known. If not, each limit's failure policy decides.
    pub fn store_answers(&self) -> bool {
        self.store.answers()
    }

    /// Whether requests are decided otherwise than the limits say: the store can't be asked, or the memory for keys is used up.
    pub fn is_degraded(&self) -> bool {
        !self.store_answers() || !self.counting_by_network().is_empty()
    }

    /// How each server of the store has fared; there is none if it counts in this process.
    pub fn store_nodes(&self) -> Vec<NodeState> {
        self.store.nodes()
    }

    /// Decisions that the store couldn't give.
    pub fn store_failures(&self) -> u64 {
        self.failures.iter().map(|(_, count)| count).sum()
    }

    /// Bytes that the counts in this process take, and that they may take.
    pub fn local_bytes(&self) -> (usize, usize) {
        match &*self.local {
            Store::Memory(store) => (store.bytes(), store.max_bytes()),
            Store::Redis(_) => (0, 0),
        }
    }

    /// Divides the memory of the counts in this process among the limits of these names: each can use its share, whatever
    /// is asked of the others. A limit that isn't named gets a share with its first request, which others may have used
    /// until then.
    pub fn share_memory_among<'l>(&self, limits: impl IntoIterator<Item = &'l str>) {
        if let Store::Memory(store) = &*self.local {
            store.announce(limits);
        }
    }

    /// The limits of which new keys were counted by client network within the last minute, for want of memory.
    pub fn counting_by_network(&self) -> Vec<String> {
        match &*self.local {
            Store::Memory(store) => store.overflowing(),
            Store::Redis(_) => Vec::new(),
        }
    }

    /// Requests that wait for room.
    pub fn waiting(&self) -> usize {
        self.waits.count()
    }

    /// Writes the metrics of the store, of those who wait, and of what is known without asking.
    pub fn write_metrics(&self, page: &mut Page<'_>) {
        self.waits.write_metrics(page);
        page.gauge(
            "tollgate_refusals_remembered",
            "Buckets of which it is known, without asking the store, that they refuse",
            self.refusals.len(),
        );
        page.gauge(
            "tollgate_overrides",
            "Rates that are set in place of the file's, of limits and of keys",
            self.overridden.len(),
        );
        page.counters(
            "tollgate_store_failures",
            "Decisions that the store couldn't give, by cause; each limit's on_failure decides them",
            self.failures.iter().map(|(kind, count)| ([("kind", kind)], count)),
        );
        page.counter(
            "tollgate_store_clock_set_back",
            "Decisions on sliding windows whose permits lie a window or more ahead of the store's clock",
            self.set_back.sum(0),
        );
        page.gauge("tollgate_store_up", "Whether the store can be asked", u32::from(self.store_answers()));
        self.local.write_metrics(page);
        if !Arc::ptr_eq(&self.local, &self.store) {
            self.store.write_metrics(page);
        }
    }

    /// Connects this thread to the store, so that its first decision needn't wait.
    ///
    /// # Errors
    /// The store can't be reached now. Requests are served by their limits' failure policy until it can.
    pub async fn warm_up(&self) -> Result<(), StoreError> {
        self.store.warm_up().await
    }

    /// Refuses, as if too many waited, those who wait for room and all who would.
    pub fn end_waits(&self) {
        self.waits.end();
    }

    /// Waits until the store has done, or given up, what nobody has waited for.
    pub async fn flush(&self) {
        self.store.flush().await;
    }

    /// Admits a request and charges all that it asks, or refuses it and charges nothing. It doesn't pass those
    /// who wait.
    ///
    /// # Errors
    /// The refusal.
    pub async fn try_acquire(self: &Arc<Self>, asks: &[Ask]) -> Result<Admission, Refusal> {
        let now = Instant::now();
        self.take_in_time(asks, now, Patience::Until(Some(now))).await
    }

    /// As [`Self::try_acquire`], but a request that is refused waits for its room until the deadline, or if
    /// there is none, until it is served. It is refused at once if it would wait in vain: by the deadline
    /// there won't be room for it and for those who came before, it asks for more than a limit ever allows, or
    /// the limit counts what is in flight, of which there is no telling when it ends.
    ///
    /// # Errors
    /// The refusal.
    pub async fn acquire(
        self: &Arc<Self>,
        asks: &[Ask],
        deadline: Option<Instant>,
    ) -> Result<Admission, Refusal> {
        self.take_in_time(asks, Instant::now(), Patience::Until(deadline)).await
    }

    /// As [`Self::acquire`], for a request that arrived then and waits as long as the limits say that refuse it.
    pub fn acquire_within_waits(
        self: &Arc<Self>,
        asks: &[Ask],
        arrival: Instant,
    ) -> impl Future<Output = Result<Admission, Refusal>> {
        self.take_in_time(asks, arrival, Patience::OfLimits(None))
    }

    /// As [`Self::acquire_within_waits`], for a caller that waits until this time at most, if it has said so.
    pub fn acquire_within_waits_until(
        self: &Arc<Self>,
        asks: &[Ask],
        arrival: Instant,
        end: Option<Instant>,
    ) -> impl Future<Output = Result<Admission, Refusal>> {
        self.take_in_time(asks, arrival, Patience::OfLimits(end))
    }

    /// As [`Self::try_acquire`], for a request that has arrived just now: that is when it is decided, as far as that is up
    /// to this process, and from when the store's deadline counts.
    pub(super) async fn take(&self, asks: &[Ask], arrival: Instant) -> Result<Admission, Refusal> {
        let mut asked = self.ask(asks)?;
        let deadline = arrival + self.timeout;
        if let Store::Memory(store) = &*self.store
            && is_shared(&asked)
        {
            return match store.take(&mut asked, arrival.into_std()) {
                Ok(decision) => self.conclude(asked, decision),
                Err(error) => self.go_without_store(asked, error, deadline).await,
            };
        }
        let _turns = self.refuse_locally(&asked, arrival, deadline).await?;
        self.take_from_stores(asked, deadline).await
    }

    /// As [`Self::take`], but the stores are asked in any case.
    pub(super) async fn decide(&self, asks: &[Ask], arrival: Instant) -> Result<Admission, Refusal> {
        self.take_from_stores(self.ask(asks)?, arrival + self.timeout).await
    }

    async fn take_from_stores(&self, asked: AllAsked<'_>, deadline: Instant) -> Result<Admission, Refusal> {
        if asked.is_empty() {
            return Ok(Admission::default());
        }
        let is_alone = asked.len() == 1;
        if is_shared(&asked) {
            return self.take_shared(asked, is_alone, deadline).await;
        }
        let (mut own, shared): (AllAsked<'_>, AllAsked<'_>) =
            asked.into_iter().partition(|asked| asked.scope == Scope::Instance);
        let mut own_decision = match self.local.take_placed(&mut own, deadline).await {
            Ok(decision) => decision,
            Err(cause) => return Err(deny(&own, cause, |_| true)),
        };
        if !own_decision.admitted {
            return Err(refuse(&own, &own_decision, Origin::Store));
        }
        // Held from here on, should the request be given up.
        let leases = hold(&self.local, &mut own_decision);
        let taken = if shared.is_empty() {
            Ok(Admission::default())
        } else {
            self.take_shared(shared, is_alone, deadline).await
        };
        match taken {
            Ok(mut admission) => {
                admission.leases.extend(leases);
                Ok(self.admit(&self.local, Origin::Store, own, own_decision, admission))
            }
            Err(refusal) => {
                self.give_back(&own, &own_decision);
                Err(refusal)
            }
        }
    }

    async fn take_shared(
        &self,
        mut asked: AllAsked<'_>,
        is_alone: bool,
        deadline: Instant,
    ) -> Result<Admission, Refusal> {
        let sent = matches!(*self.store, Store::Redis(_)).then(|| self.refusals.sending());
        match self.store.take_placed(&mut asked, deadline).await {
            Ok(decision) => {
                if let Some(sent) = sent {
                    self.learn(&asked, &decision, sent, is_alone);
                }
                self.conclude(asked, decision)
            }
            Err(error) => self.go_without_store(asked, error, deadline).await,
        }
    }

    /// What comes of the store's decision.
    fn conclude(&self, asked: AllAsked<'_>, decision: Decision) -> Result<Admission, Refusal> {
        match decision.admitted {
            true => Ok(self.admit(&self.store, Origin::Store, asked, decision, Admission::default())),
            false => Err(refuse(&asked, &decision, Origin::Store)),
        }
    }

    /// What comes of it that there is no decision. In a box, lest all decisions keep room for it.
    async fn go_without_store(
        &self,
        asked: AllAsked<'_>,
        error: StoreError,
        deadline: Instant,
    ) -> Result<Admission, Refusal> {
        self.failures.add(error.kind());
        Box::pin(self.take_without_store(asked, error, deadline)).await
    }

    /// Remembers what a decision of the store says of the next ones.
    fn learn(&self, all: &AllAsked<'_>, decision: &Decision, sent: Sending, is_alone: bool) {
        // What is told of a bucket that is charged twice holds for both costs together.
        let is_repeated = |asked: &Asked<'_>| {
            let same = |other: &&Asked<'_>| other.charge.bucket == asked.charge.bucket;
            all.iter().filter(same).count() > 1
        };
        let remembered = (all.iter().zip(&decision.outcomes))
            .filter(|(asked, _)| self.remembers(&asked.charge, asked.scope) && !is_repeated(asked));
        for (Asked { charge, .. }, outcome) in remembered {
            // A permit frees a window after it was granted, so this one will be granted in a window or later.
            if outcome.grow_us > 2 * charge.quota.window_us
                && charge.quota.algorithm == Algorithm::SlidingWindow
            {
                self.set_back.add(0);
            }
            self.refusals.learn(charge, outcome, sent, is_alone);
        }
    }

    /// Decides by the limits' failure policy: one `deny` refuses, else the `local` ones count here.
    /// Where counting here is what fails, for want of memory, `local` is `deny`.
    async fn take_without_store(
        &self,
        asked: AllAsked<'_>,
        error: StoreError,
        deadline: Instant,
    ) -> Result<Admission, Refusal> {
        let is_full = matches!(error, StoreError::Full);
        let denies = |asked: &Asked<'_>| match asked.ask.limit.on_failure {
            OnFailure::Deny => !asked.charge.shadow,
            OnFailure::Local => !asked.charge.shadow && is_full,
            OnFailure::Allow => false,
        };
        if asked.iter().any(denies) {
            return Err(deny(&asked, error, denies));
        }
        let (mut counted, passed): (AllAsked<'_>, AllAsked<'_>) =
            asked.into_iter().partition(|asked| asked.ask.limit.on_failure == OnFailure::Local && !is_full);
        for Asked { charge, common, .. } in &mut counted {
            charge.quota = charge.quota.share(self.instances);
            *common = common.share(self.instances);
            charge.cost = charge.cost.min(charge.quota.capacity());
        }
        let mut admission = Admission::default();
        let passed = passed.iter().filter(|asked| !asked.charge.shadow);
        admission.standings.extend(passed.map(|asked| asked.standing(UNKNOWN_ROOM, Origin::FallbackAllow)));
        match self.local.take_placed(&mut counted, deadline).await {
            Ok(decision) if decision.admitted => {
                Ok(self.admit(&self.local, Origin::FallbackLocal, counted, decision, admission))
            }
            Ok(decision) => Err(refuse(&counted, &decision, Origin::FallbackLocal)),
            Err(cause) if counted.iter().any(|asked| !asked.charge.shadow) => {
                Err(deny(&counted, cause, |asked| !asked.charge.shadow))
            }
            Err(_) => Ok(admission),
        }
    }

    /// Refuses what a limit refused lately and still would. What it gives else is to be kept until the store
    /// has answered.
    async fn refuse_locally(
        &self,
        asked: &AllAsked<'_>,
        arrival: Instant,
        deadline: Instant,
    ) -> Result<Turns<'_>, Refusal> {
        let enforcing = || asked.iter().filter(|asked| self.remembers(&asked.charge, asked.scope));
        let charges = || enforcing().map(|asked| (&asked.charge, asked.ask.limit.costs));
        let ask_by = self.store.ask_by(deadline);
        match self.refusals.check(charges, arrival, ask_by).await {
            Verdict::Ask(turns) => Ok(turns),
            Verdict::Refused(outcomes) => {
                let refused = enforcing().zip(outcomes);
                let refused = refused
                    .filter_map(|(asked, outcome)| Some(asked.standing(outcome?, Origin::LocalRefusal)));
                Err(Refusal::Limited(Box::new(Limited { standings: refused.collect() })))
            }
        }
    }

    /// Refuses what was refused lately and surely still would be, and nobody has to ask for or waits for.
    pub fn refuse_again(&self, asks: &[Ask], now: Instant) -> Option<Box<Limited>> {
        let asked = match self.ask(asks) {
            Ok(asked) => asked,
            Err(Refusal::Limited(never)) => return Some(never),
            Err(_) => return None,
        };
        let is_awaited = |Asked { charge, .. }: &Asked<'_>| self.waits.has_waiters(&charge.bucket);
        if !self.waits.are_empty() && asked.iter().any(is_awaited) {
            return None;
        }
        let refused = |Asked { ask, charge, scope, .. }: &Asked<'_>| match &**self.store_of(*scope) {
            // Several are charged together, and then each is told.
            Store::Memory(store) if asked.len() == 1 => {
                Some((store.refuse(charge, now.into_std())?, Origin::Store))
            }
            Store::Redis(_) if !charge.shadow => {
                Some((self.refusals.refused(charge, ask.limit.costs, now)?, Origin::LocalRefusal))
            }
            _ => None,
        };
        let standing = |asked: &Asked<'_>| {
            let (outcome, origin) = refused(asked)?;
            Some(asked.standing(outcome, origin))
        };
        let limited = Limited { standings: asked.iter().filter_map(standing).collect() };
        (!limited.standings.is_empty()).then(|| Box::new(limited))
    }

    /// Adds to an admission what a store has decided.
    fn admit(
        &self,
        store: &Arc<Store>,
        origin: Origin,
        asked: AllAsked<'_>,
        mut decision: Decision,
        mut admission: Admission,
    ) -> Admission {
        admission.leases.extend(hold(store, &mut decision));
        admission.standings.reserve(asked.len());
        for (asked, outcome) in asked.into_iter().zip(&decision.outcomes) {
            admission.standings.push(asked.standing(*outcome, origin));
            let Asked { ask, charge, common, .. } = asked;
            if let Some(cost) = ask.settles.filter(|_| outcome.charged) {
                let (ask, store, refusals) = (ask.clone(), store.clone(), self.refusals.clone());
                admission.accounts.push(Account { ask, store, refusals, charge, common, cost });
            }
        }
        admission
    }

    fn give_back(&self, asked: &AllAsked<'_>, decision: &Decision) {
        for (charge, outcome) in asked.iter().map(Asked::charge).zip(&decision.outcomes) {
            if outcome.charged {
                self.local.give_back(&charge.bucket, charge.quota, decision.time_us, charge.cost);
            }
        }
    }

    /// Refuses without touching a store where a limit asks for more than it ever allows.
    pub(super) fn refuse_what_never_fits(&self, asks: &[Ask]) -> Result<(), Refusal> {
        self.ask(asks).map(drop)
    }

    /// What is asked, with what it charges. What never fits is refused without asking.
    fn ask<'r>(&self, asks: &'r [Ask]) -> Result<AllAsked<'r>, Refusal> {
        let mut asked = AllAsked::with_capacity(asks.len());
        for ask in asks {
            let another = self.asked(ask);
            if !asked.iter_mut().any(|asked: &mut Asked<'_>| asked.join(&another)) {
                asked.push(another);
            }
        }
        if asked.iter().all(Asked::is_within_quota) {
            return Ok(asked);
        }
        refuse_what_never_fits(&asked)?;
        asked.retain(|asked| asked.is_within_quota());
        Ok(asked)
    }

    /// What a request asks of a limit, by the quotas that hold now.
    pub(super) fn asked<'r>(&self, ask: &'r Ask) -> Asked<'r> {
        let (charge, scope) = self.charge(ask);
        let common = self.rate(&ask.limit, None);
        let mut asked = Asked::new(ask, charge, common);
        asked.scope = scope;
        asked
    }

    /// What a request charges a limit, by the quota that holds now, and where.
    pub(super) fn charge(&self, ask: &Ask) -> (Charge, Scope) {
        match self.overridden.of(&ask.limit, Some(&ask.key)) {
            Some((rate, scope)) => (ask.charge(&self.key_prefix, rate), scope.unwrap_or(ask.limit.scope)),
            None => (ask.charge(&self.key_prefix, ask.rate_of_file()), ask.limit.scope),
        }
    }

    /// Looks how much is in use where a request is counted, and when it fits. Says whether that is by network.
    pub(super) async fn peek_at(&self, asked: &mut Asked<'_>) -> Result<(Usage, bool), StoreError> {
        let deadline = Instant::now() + self.timeout;
        self.store_of(asked.scope).peek_placed(asked, deadline).await
    }

    /// Where limits of this scope count.
    fn store_of(&self, scope: Scope) -> &Arc<Store> {
        match scope {
            Scope::Shared => &self.store,
            Scope::Instance => &self.local,
        }
    }

    /// Says how a request would be refused now, or that it wouldn't.
    pub(super) async fn look_at(&self, asked: &mut Asked<'_>) -> Result<Outcome, StoreError> {
        let sent = self.refusals.sending();
        let (Usage { used, grow_us, delay_us }, _) = self.peek_at(asked).await?;
        let remaining = u64::from(asked.charge().quota.capacity()).saturating_sub(used);
        let outcome = Outcome { charged: false, remaining, grow_us, delay_us };
        if self.remembers(&asked.charge, asked.scope) {
            self.refusals.note(&asked.charge, &outcome, sent);
        }
        Ok(outcome)
    }

    /// Ends what is known of a bucket that has been reset.
    pub(super) fn forget(&self, bucket: &Bytes) {
        self.refusals.forget(bucket);
        self.waits.forget(Some(bucket));
    }

    /// Ends what is known of all buckets, since limits have been changed.
    pub(super) fn forget_all(&self) {
        self.refusals.forget_all();
        self.waits.forget(None);
    }

    /// Whether refusals of a charge are given here. The in-process store is asked as fast.
    fn remembers(&self, charge: &Charge, scope: Scope) -> bool {
        self.is_shared(scope) && !charge.shadow
    }

    /// Returns whether limits of this scope count for other gateways, too.
    pub(super) fn is_shared(&self, scope: Scope) -> bool {
        scope == Scope::Shared && matches!(*self.store, Store::Redis(_))
    }
}

/// Whether all count for all gateways.
fn is_shared(asked: &AllAsked<'_>) -> bool {
    asked.iter().all(|asked| asked.scope == Scope::Shared)
}

/// Of a limit that lets pass without knowing.
const UNKNOWN_ROOM: Outcome = Outcome { charged: false, remaining: 0, grow_us: 0, delay_us: Some(0) };
/// Of a limit that refuses whatever there is.
const NO_ROOM: Outcome = Outcome { charged: false, remaining: 0, grow_us: 0, delay_us: None };

/// Refuses since the store can't answer, by the limits that say so.
fn deny(asked: &AllAsked<'_>, cause: StoreError, denies: impl Fn(&Asked<'_>) -> bool) -> Refusal {
    let denying = asked.iter().filter(|asked| denies(asked));
    let denied_by = denying.map(|asked| denial(asked.ask, asked.charge.quota)).collect();
    Refusal::StoreUnavailable { cause, denied_by }
}

/// Where a limit stands that refuses since the store can't answer.
pub(super) fn denial(ask: &Ask, quota: Quota) -> Standing {
    Standing::new(ask, quota, NO_ROOM, Origin::FallbackDeny)
}

/// Holds the leases that a decision has granted.
fn hold(store: &Arc<Store>, decision: &mut Decision) -> Vec<Held> {
    decision.leases.drain(..).map(|lease| Held::new(store, lease)).collect()
}

/// Refuses without touching a store where a limit asks for more than it ever allows.
fn refuse_what_never_fits(asked: &AllAsked<'_>) -> Result<(), Refusal> {
    let never = asked.iter().filter(|asked| !asked.is_within_quota() && !asked.charge.shadow);
    let standings = never.map(|asked| asked.standing(NO_ROOM, Origin::LocalRefusal));
    let limited = Limited { standings: standings.collect() };
    if limited.standings.is_empty() { Ok(()) } else { Err(Refusal::Limited(Box::new(limited))) }
}

fn refuse(asked: &AllAsked<'_>, decision: &Decision, origin: Origin) -> Refusal {
    let mut limited = Box::new(Limited { standings: Standings::with_capacity(asked.len()) });
    for (asked, outcome) in asked.iter().zip(&decision.outcomes) {
        limited.standings.push(asked.standing(*outcome, origin));
    }
    Refusal::Limited(limited)
}
