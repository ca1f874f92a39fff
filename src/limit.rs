//! Limits decide whether a request may pass: they turn it into charges, ask the store, and say what
//! happens when the store can't answer.
//!
//! A [`Limit`] is a named rule of the configuration, ready to be asked; [`key`] works out whom it
//! counts. The [`Limiter`] asks for all limits of a route at once. What comes out is an [`Admission`],
//! or a [`Refusal`], which knows when to come back.

pub mod fields;
pub mod key;

use std::sync::Arc;

use bytes::Bytes;
use hyper::HeaderMap;
use smallvec::SmallVec;
use tokio::time::{Duration, Instant};

use crate::{
    algorithm::Quota,
    config::{self, Mode, OnFailure, RatelimitHeaders},
    store::{Charge, Charges, Decision, Outcome, Store, StoreError},
};

use self::key::{Counted, Subject};

/// A named rule, ready to be asked.
#[derive(Debug)]
pub struct Limit {
    config: Arc<config::Limit>,
    /// The name of a bucket before its key: `<prefix>:<limit>:<tag>:`.
    bucket_prefix: String,
    /// The quota while this gateway counts alone.
    local_quota: Quota,
}

impl Limit {
    /// Makes a limit of the configuration ready.
    pub fn new(config: Arc<config::Limit>, store: &config::Store) -> Self {
        let tag = config.quota.algorithm.tag();
        let bucket_prefix = format!("{}:{}:{tag}:", store.key_prefix, config.name);
        let local_quota = config.quota.share(store.instances);
        Self { config, bucket_prefix, local_quota }
    }

    /// The name, as in the configuration.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// Whether it only counts and reports.
    pub fn shadows(&self) -> bool {
        self.config.mode == Mode::Shadow
    }

    fn charge(&self, key: &str) -> Charge {
        let Self { bucket_prefix, config, .. } = self;
        let bucket = Bytes::from([bucket_prefix, "{", key, "}"].concat());
        Charge { bucket, quota: config.quota, cost: 1, shadow: self.shadows() }
    }
}

/// Where one limit stands after a request.
#[derive(Clone, Debug)]
pub struct Standing {
    /// The limit.
    pub limit: Arc<Limit>,
    /// The quota it was held to: the limit's, or this gateway's share of it while the store is away.
    pub quota: Quota,
    /// What the store said.
    pub outcome: Outcome,
}

type Standings = SmallVec<[Standing; 2]>;

/// A request that may pass, and where its limits stand.
#[derive(Debug)]
pub struct Admission {
    standings: Standings,
    form: RatelimitHeaders,
}

impl Admission {
    /// Tells the client where its limits stand.
    pub fn annotate(&self, headers: &mut HeaderMap) {
        fields::write(headers, &self.standings, self.form);
    }
}

/// A request that may not pass.
#[derive(Debug)]
pub enum Refusal {
    /// A limit has no room.
    Limited(Box<Limited>),
    /// The request lacks the key of a limit that refuses such requests.
    KeyMissing {
        /// The limit's name.
        limit: String,
    },
    /// The request has two different values for one part of a limit's key.
    KeyAmbiguous {
        /// The part, as in the configuration: `header:x-api-key`.
        part: String,
    },
    /// The store can't answer, and a limit says to refuse then.
    StoreUnavailable(StoreError),
}

/// Which limits refused, and when there will be room.
#[derive(Debug)]
pub struct Limited {
    standings: Standings,
    form: RatelimitHeaders,
}

impl Limited {
    /// The names of the limits that refused.
    pub fn violated(&self) -> impl Iterator<Item = &str> {
        self.refusing().map(|standing| standing.limit.name())
    }

    /// Microseconds until the request can be admitted, if nobody else takes the room; `None` if never.
    pub fn delay_us(&self) -> Option<u64> {
        let mut delays = self.refusing().map(|standing| standing.outcome.delay_us);
        delays.try_fold(0, |greatest, delay_us| Some(delay_us?.max(greatest)))
    }

    /// Tells the client where its limits stand, and when to come back.
    pub fn annotate(&self, headers: &mut HeaderMap) {
        fields::write(headers, &self.standings, self.form);
        if let Some(delay_us) = self.delay_us() {
            fields::write_retry_after(headers, delay_us);
        }
    }

    fn refusing(&self) -> impl Iterator<Item = &Standing> {
        let refused =
            |standing: &&Standing| !standing.limit.shadows() && standing.outcome.delay_us != Some(0);
        self.standings.iter().filter(refused)
    }
}

/// Where limits count. It outlives reloads of the configuration.
#[derive(Clone, Debug)]
pub struct Stores {
    store: Arc<Store>,
    /// Counts in this process while the store is away. It starts empty, and isn't written back.
    fallback: Arc<Store>,
}

impl Stores {
    /// Opens the stores of a configuration. Nothing is connected yet: see [`Limiter::warm_up`].
    ///
    /// # Errors
    /// A url that the client can't read.
    pub fn open(config: &config::Store) -> Result<Self, StoreError> {
        let fallback = Arc::new(Store::in_process(config.max_memory));
        Ok(Self { store: Arc::new(Store::open(config)?), fallback })
    }
}

/// Asks the limits of a route.
#[derive(Debug)]
pub struct Limiter {
    stores: Stores,
    timeout: Duration,
    form: RatelimitHeaders,
}

/// A limit that counts a request, and what it asks of the store.
type Asked = SmallVec<[(Arc<Limit>, Charge); 2]>;

impl Limiter {
    /// A limiter on these stores.
    pub fn new(config: &config::Store, stores: &Stores, form: RatelimitHeaders) -> Self {
        Self { stores: stores.clone(), timeout: config.timeout, form }
    }

    /// Connects this thread to the store, so that its first decision needn't wait.
    ///
    /// # Errors
    /// The store can't be reached now. Requests are served by their limits' failure policy until it can.
    pub async fn warm_up(&self) -> Result<(), StoreError> {
        self.stores.store.warm_up().await
    }

    /// Admits a request and charges all limits that count it, or refuses it and charges none.
    ///
    /// # Errors
    /// The refusal.
    pub async fn admit(
        &self,
        limits: &[Arc<Limit>],
        subject: &Subject<'_>,
        arrival: Instant,
    ) -> Result<Admission, Refusal> {
        let asked = ask(limits, subject)?;
        if asked.is_empty() {
            return Ok(Admission { standings: SmallVec::new(), form: self.form });
        }
        let charges = asked.iter().map(|(_, charge)| charge.clone()).collect();
        match self.stores.store.take(charges, arrival + self.timeout).await {
            Ok(decision) => self.conclude(asked, decision),
            Err(error) => self.without_store(asked, error).await,
        }
    }

    /// Decides by the limits' failure policy: one `deny` refuses, else the `local` ones count here.
    /// Where counting here is what fails, for want of memory, `local` is `deny`.
    async fn without_store(&self, mut asked: Asked, error: StoreError) -> Result<Admission, Refusal> {
        let is_full = matches!(error, StoreError::Full);
        let denies = |(limit, charge): &(Arc<Limit>, Charge)| match limit.config.on_failure {
            OnFailure::Deny => !charge.shadow,
            OnFailure::Local => !charge.shadow && is_full,
            OnFailure::Allow => false,
        };
        if asked.iter().any(denies) {
            return Err(Refusal::StoreUnavailable(error));
        }
        asked.retain(|(limit, charge)| {
            charge.quota = limit.local_quota;
            charge.cost = charge.cost.min(limit.local_quota.capacity());
            limit.config.on_failure == OnFailure::Local && !is_full
        });
        let charges: Charges = asked.iter().map(|(_, charge)| charge.clone()).collect();
        let enforces = charges.iter().any(|charge| !charge.shadow);
        // It answers at once.
        match self.stores.fallback.take(charges, Instant::now()).await {
            Ok(decision) => self.conclude(asked, decision),
            Err(error) if enforces => Err(Refusal::StoreUnavailable(error)),
            Err(_) => Ok(Admission { standings: SmallVec::new(), form: self.form }),
        }
    }

    fn conclude(&self, asked: Asked, decision: Decision) -> Result<Admission, Refusal> {
        let standings = asked
            .into_iter()
            .zip(decision.outcomes)
            .map(|((limit, charge), outcome)| Standing { limit, quota: charge.quota, outcome })
            .collect();
        let form = self.form;
        if decision.admitted {
            Ok(Admission { standings, form })
        } else {
            Err(Refusal::Limited(Box::new(Limited { standings, form })))
        }
    }
}

/// The limits that count a request, each with its charge.
fn ask(limits: &[Arc<Limit>], subject: &Subject<'_>) -> Result<Asked, Refusal> {
    let mut asked = Asked::new();
    for limit in limits {
        match key::count(&limit.config, subject) {
            Counted::For { key, .. } => asked.push((limit.clone(), limit.charge(&key))),
            Counted::Not => {}
            _ if limit.shadows() => {}
            Counted::Denied => return Err(Refusal::KeyMissing { limit: limit.name().to_owned() }),
            Counted::Ambiguous(part) => return Err(Refusal::KeyAmbiguous { part }),
        }
    }
    Ok(asked)
}
