//! What an HTTP request asks of its route's limits, and what its response settles.

mod admit;
mod bans;
mod body_cost;
pub(crate) mod costs;
mod decided;
pub mod heavy_hitters;
pub mod key;
mod reports;
mod settlement;
mod terms;

use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use smallvec::SmallVec;
use tokio::time::Instant;
use tollgate_limiter::{Algorithm, Ask, Asks, Effect, Key, Limit, Origin, Rate, RateOfKey, Refusal, Scope};

use crate::config::{self, Cost, CostUsage, KeyPart, Mode};

pub use self::{
    admit::{Repeat, admit, asks},
    decided::{Decided, DecisionLog, write_metrics},
    settlement::Settlement,
    terms::Terms,
};
pub(crate) use self::{
    admit::{admit_descriptors, standing_of},
    reports::record_reports,
};

use self::{
    bans::Breaches,
    decided::Decisions,
    heavy_hitters::HeavyHitters,
    key::{Counted, CountedKey, OwnRates, Subject, descriptor},
};

/// A limit of the configuration, ready to be asked by requests.
#[derive(Debug)]
pub struct Rule {
    limit: Arc<Limit>,
    config: Arc<config::LimitSettings>,
    /// The cost that the route states, if it does.
    route_cost: Option<u32>,
    tally: Arc<Tally>,
}

/// The counts of a limit. They outlive reloads that leave the limit its name.
#[derive(Debug, Default)]
struct Tally {
    decisions: Decisions,
    /// The keys that ask most.
    requests: HeavyHitters,
    /// The keys that are refused most.
    refused: HeavyHitters,
    /// The refusals that lead to bans.
    breaches: Breaches,
    /// The responses that didn't state their cost.
    estimates_kept: AtomicU64,
    /// True once such a response has been logged.
    has_warned_of_estimate: AtomicBool,
    /// True once a caller has asked whether there is room, without asking for permits.
    is_looked_at: AtomicBool,
}

impl Rule {
    /// Makes a limit of the configuration ready. It goes on with the metrics of the one `before`.
    pub fn new(config: &Arc<config::LimitSettings>, before: Option<&Self>) -> Self {
        let tally = before.map_or_else(Arc::default, |before| before.tally.clone());
        Self { limit: Arc::new(limit_of(config)), config: config.clone(), route_cost: None, tally }
    }

    /// Returns the rule for a route whose requests cost this much.
    pub(crate) fn at_cost(&self, cost: u32) -> Self {
        let Self { limit, config, tally, .. } = self;
        Self { limit: limit.clone(), config: config.clone(), route_cost: Some(cost), tally: tally.clone() }
    }

    /// Returns the cost that the route or the configuration states. 0 if requests or responses state it.
    pub(crate) fn fixed_cost(&self) -> u32 {
        match self.config.cost {
            Cost::Fixed(cost) => self.route_cost.unwrap_or(cost),
            _ => 0,
        }
    }

    /// The limit.
    pub fn limit(&self) -> &Arc<Limit> {
        &self.limit
    }

    /// The limit as it is configured.
    pub fn config(&self) -> &config::LimitSettings {
        &self.config
    }

    /// Returns the ask of a request with this key, at the rate that the file gives to it.
    pub fn ask_for(&self, key: Key) -> Ask {
        let own = OwnRates::new(&self.config).of(&key);
        Ask::new(&self.limit, key).rate(own)
    }

    /// Returns the limit, and what returns the rate that the file gives to a key. `None` if requests state rates: those that
    /// wait keep the rate that they stated.
    pub(crate) fn rates(&self) -> Option<(&Limit, RateOfKey)> {
        let own = OwnRates::new(&self.config);
        let by_file = self.config.rate_from.is_none();
        by_file.then(|| (&*self.limit, Box::new(move |key: &Key| own.of(key)) as RateOfKey))
    }

    /// Returns the keys to which the file gives a rate of their own, as text, each with its rate. A key in which any value may
    /// stand for a part is written as in the file: `["pro","*"]`.
    pub(crate) fn own_rates(&self) -> impl Iterator<Item = (String, Rate)> {
        self.config.overrides.iter().map(|own| (key::own_text(&self.config, own), own.rate))
    }

    /// Returns the number of requests on which the limit had this effect.
    pub fn count(&self, effect: Effect) -> u64 {
        self.tally.decisions.count(effect)
    }

    /// Returns the keys that ask most.
    pub fn busiest(&self) -> &HeavyHitters {
        &self.tally.requests
    }

    /// Returns the keys that are refused most, or would be if the limit didn't shadow.
    pub fn most_refused(&self) -> &HeavyHitters {
        &self.tally.refused
    }

    /// Returns the terms of the limit for a request.
    pub fn terms(&self, subject: &Subject<'_>) -> Terms {
        self.terms_of(key::count(&self.config, subject), |keys| {
            let cost = self.cost(subject.headers)?;
            Ok(self.asks_for(keys, subject.client, cost))
        })
    }

    /// Returns what the limit makes of a descriptor, where `value` returns the value of the entry that stands for a part of
    /// its key. `client` is the address that the descriptor states beside the key, and `rate` the rate that it states.
    pub(crate) fn terms_of_descriptor<'d>(
        &self,
        value: impl Fn(&KeyPart) -> Option<&'d [u8]> + Copy,
        client: Option<IpAddr>,
        hits: u32,
        rate: Option<Rate>,
    ) -> Terms {
        let hits = match self.config.cost {
            Cost::Fixed(cost) => cost.saturating_mul(hits),
            _ => hits,
        };
        let client = descriptor::client(value).or(client);
        self.terms_of(descriptor::count(&self.config, value), |keys| {
            let ask = |(reading, CountedKey { key, rate: own, is_rate_of_group })| {
                let ask = self.ask_of(Key::of_text(key), rate.or(own), hits.min(Rate::MAX_PERMITS));
                let ask = ask.rate_of_group(rate.is_some() || is_rate_of_group);
                client.into_iter().fold(ask, Ask::from_client).reading(reading)
            };
            Ok((0..).zip(keys).map(ask).collect())
        })
    }

    fn terms_of(
        &self,
        counted: Counted,
        asks: impl FnOnce(SmallVec<[CountedKey; 1]>) -> Result<Asks, Refusal>,
    ) -> Terms {
        match counted {
            Counted::For(keys) => asks(keys).map_or_else(Terms::Refuses, Terms::Counts),
            Counted::Exempt { entry } => Terms::Exempts { entry: Some(entry) },
            Counted::Skipped => Terms::Skips,
            Counted::Denied => Terms::Refuses(key_missing(&self.config)),
            Counted::Unknown(part) => Terms::Refuses(Refusal::KeyUnknown { part }),
            Counted::Unverified => Terms::Refuses(Refusal::TokenUnverified),
            Counted::Ambiguous(part) => Terms::Refuses(Refusal::KeyAmbiguous { part }),
        }
    }

    /// Returns what a request asks of the limit that counts for these keys and costs so much.
    fn asks_for(&self, keys: impl IntoIterator<Item = CountedKey>, client: IpAddr, cost: u32) -> Asks {
        let ask = |(reading, CountedKey { key, rate, is_rate_of_group })| {
            let ask = self.ask_of(Key::of_text(key), rate, cost).rate_of_group(is_rate_of_group);
            ask.from_client(client).reading(reading)
        };
        (0..).zip(keys).map(ask).collect()
    }

    /// Returns the asks of a request that the limit counts. Otherwise notes why it doesn't.
    pub(crate) fn ask(&self, terms: Terms, log: &mut DecisionLog) -> Result<Asks, Refusal> {
        let (effect, refusal) = match terms {
            Terms::Counts(asks) => return Ok(asks),
            Terms::Exempts { .. } => (Effect::Exempt, None),
            Terms::Skips => (Effect::Skipped, None),
            Terms::Refuses(refusal) => (Effect::Refused, Some(refusal)),
        };
        self.note_terms(effect, log);
        refusal.filter(|_| !self.limit.shadows()).map_or(Ok(Asks::new()), Err)
    }

    /// Returns the ask for a key at this cost. What only the response tells is settled later.
    pub(crate) fn ask_of(&self, key: Key, rate: Option<Rate>, cost: u32) -> Ask {
        let ask = Ask::new(&self.limit, key).rate(rate);
        match self.config.cost {
            _ if !self.config.when_status.is_empty() => ask.cost(0).settled_later(cost),
            Cost::Response { .. } | Cost::ResponseJson { .. } => ask.cost(cost).settled_later(cost),
            _ => ask.cost(cost),
        }
    }

    /// Counts what it did to a request.
    fn note(&self, effect: Effect, origin: Origin, key: Option<&Key>, arrival: Instant) {
        self.tally.decisions.add(effect, origin);
        if let Some(key) = key {
            let key = key.into();
            self.tally.requests.note(key, arrival);
            if effect == Effect::Refused {
                self.tally.refused.note(key, arrival);
            }
        }
    }

    /// Returns true if the bodies of responses state the cost.
    pub(crate) fn reads_bodies(&self) -> bool {
        matches!(self.config.cost, Cost::ResponseJson { .. })
    }

    /// Returns true if the costs that callers name are reports of what was used.
    pub(crate) fn takes_reports(&self) -> bool {
        self.config.usage == CostUsage::Reported
    }

    /// Returns true if nobody has asked whether there is room before, without asking for permits.
    pub(crate) fn is_first_look(&self) -> bool {
        !self.tally.is_looked_at.swap(true, Ordering::Relaxed)
    }

    /// Notes what its terms did to a request.
    fn note_terms(&self, effect: Effect, log: &mut DecisionLog) {
        let shadows = self.limit.shadows() && effect == Effect::Refused;
        let origin = if shadows { Origin::Shadow } else { Origin::Terms };
        self.tally.decisions.add(effect, origin);
        if let Some(log) = log {
            let limit = self.limit.clone();
            log.push(Decided { limit, effect, origin, remaining: None, delay_us: None, key: None });
        }
    }
}

/// The limit of a configuration.
fn limit_of(config: &config::LimitSettings) -> Limit {
    let mut limit =
        Limit::new(&config.name, config.quota).on_failure(config.on_failure).wait_at_most(config.wait);
    if let (Some(name), Algorithm::Redisson(counted)) = (&config.redisson_name, config.quota.algorithm) {
        let counts_addresses = config.key.contains(&KeyPart::Ip);
        let name = if counts_addresses { name.clone() } else { name.clone().with_addresses_apart() };
        limit = limit.shared_with_redisson(name, counted);
    }
    if config.mode == Mode::Shadow {
        limit = limit.shadow();
    }
    if config.scope == Scope::Instance {
        limit = limit.in_this_process();
    }
    if config.refunds {
        limit = limit.with_refunds();
    }
    if let Some(ban) = &config.ban {
        limit = limit.with_bans_of(ban.lasts);
    }
    let costs_equal = matches!(config.cost, Cost::Fixed(_)) && !config.costs_vary;
    if costs_equal && config.usage == CostUsage::Charged {
        limit = limit.of_equal_costs();
    }
    limit
}

/// Returns the refusal of a request that lacks a part of the limit's key.
pub(crate) fn key_missing(limit: &config::LimitSettings) -> Refusal {
    let parts: Vec<_> = limit.key.iter().map(ToString::to_string).collect();
    Refusal::KeyMissing { limit: limit.name.clone(), parts: parts.join(", ") }
}
