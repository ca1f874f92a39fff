//! What an HTTP request asks of its route's limits, and what its response settles.

use std::sync::Arc;

use hyper::{HeaderMap, StatusCode, header::HeaderName};
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::config::{self, Cost};

use super::{
    Admission, Ask, Asks, Limit, Limiter, Refusal,
    key::{self, Counted, Key, Subject},
};

/// A limit of the configuration, ready to be asked by requests.
#[derive(Debug)]
pub struct Rule {
    limit: Arc<Limit>,
    config: Arc<config::Limit>,
}

impl Rule {
    /// Makes a limit of the configuration ready.
    pub fn new(config: &Arc<config::Limit>) -> Self {
        Self { limit: Arc::new(Limit::from(&**config)), config: config.clone() }
    }

    /// The limit.
    pub fn limit(&self) -> &Arc<Limit> {
        &self.limit
    }

    /// The limit as it is configured.
    pub fn config(&self) -> &config::Limit {
        &self.config
    }

    /// What a request of this key asks, as people write the key: `gold`, or `["v1","v2"]` where it has parts.
    ///
    /// # Errors
    /// A message and, on a line of its own, the remedy.
    pub fn ask_for(&self, written: &str) -> Result<Ask, String> {
        let values = config::read_key(written, &self.config.key, self.config.prefixes)?;
        let own = self.config.overrides.iter().find(|own| own.key == values);
        let key = key::key_of(&self.config, written)?;
        Ok(Ask::new(&self.limit, key).rate(own.map(|own| own.rate)))
    }

    /// What a request asks of it, if it counts it.
    fn ask(&self, subject: &Subject<'_>) -> Result<Option<Ask>, Refusal> {
        let Self { limit, config } = self;
        let (key, rate) = match key::count(config, subject) {
            Counted::For { key, rate } => (key, rate),
            Counted::Not => return Ok(None),
            _ if limit.shadows() => return Ok(None),
            Counted::Denied => return Err(Refusal::KeyMissing { limit: limit.name().to_owned() }),
            Counted::Ambiguous(part) => return Err(Refusal::KeyAmbiguous { part }),
        };
        let ask = Ask::new(limit, Key::of_text(key)).rate(rate);
        let cost = match cost(config, subject.headers) {
            Ok(cost) => cost,
            Err(_) if limit.shadows() => return Ok(None),
            Err(refusal) => return Err(refusal),
        };
        Ok(Some(match config.cost {
            _ if !config.when_status.is_empty() => ask.cost(0).settled_later(cost),
            Cost::Response { .. } => ask.cost(cost).settled_later(cost),
            _ => ask.cost(cost),
        }))
    }
}

/// What a request costs under a limit as far as it tells itself: the estimate, if its response will tell.
fn cost(config: &config::Limit, headers: &HeaderMap) -> Result<u32, Refusal> {
    match &config.cost {
        Cost::Fixed(cost) => Ok(*cost),
        Cost::Response { estimate, .. } => Ok(*estimate),
        Cost::Header(name) => match stated_cost(headers, name) {
            Some(Ok(cost)) => Ok(cost),
            None => Ok(1),
            Some(Err(NotACost)) => Err(Refusal::CostInvalid { header: name.to_string() }),
        },
    }
}

/// Something else than one integer of 1 to 2^31 - 1.
#[derive(Debug)]
pub(crate) struct NotACost;

/// The cost that a header states, if it is there.
pub(crate) fn stated_cost(headers: &HeaderMap, name: &HeaderName) -> Option<Result<u32, NotACost>> {
    let mut lines = headers.get_all(name).into_iter();
    let first = lines.next()?;
    let digits = first.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let cost = digits.and_then(|digits| digits.parse::<u32>().ok());
    let cost = cost.filter(|cost| (1..=i32::MAX as u32).contains(cost) && lines.all(|line| line == first));
    Some(cost.ok_or(NotACost))
}

/// Admits a request that arrived at this time, or refuses it.
///
/// # Errors
/// The refusal.
pub async fn admit(
    limiter: &Arc<Limiter>,
    rules: &[Arc<Rule>],
    subject: &Subject<'_>,
    arrival: Instant,
) -> Result<Admission, Refusal> {
    let mut asks = Asks::new();
    for rule in rules {
        asks.extend(rule.ask(subject)?);
    }
    limiter.acquire_within_waits(&asks, arrival).await
}

/// What a response still has to tell about the costs of an admitted request.
#[derive(Debug)]
pub struct Settlement {
    admission: Admission,
    open: SmallVec<[Open; 1]>,
}

/// A limit whose cost isn't known yet.
#[derive(Debug)]
struct Open {
    limit: Arc<Limit>,
    header: HeaderName,
    estimate: u32,
}

impl Settlement {
    /// Records what the head of the response tells. What is left to be told, or to be held until the body has
    /// ended, is in the settlement, if anything.
    pub fn begin(
        admission: Admission,
        rules: &[Arc<Rule>],
        status: StatusCode,
        headers: &HeaderMap,
    ) -> Option<Self> {
        let mut open = SmallVec::new();
        for account in &admission.accounts {
            let Some(rule) = rules.iter().find(|rule| Arc::ptr_eq(&rule.limit, &account.limit)) else {
                continue;
            };
            match &rule.config.cost {
                Cost::Response { header, .. } => open.push(Open {
                    limit: account.limit.clone(),
                    header: header.clone(),
                    estimate: account.cost,
                }),
                _ if rule.config.when_status.iter().any(|range| range.matches(status)) => {
                    admission.record(account.limit.name(), account.cost);
                }
                _ => {}
            }
        }
        let mut settlement = Self { admission, open };
        settlement.settle(headers);
        let is_over = settlement.open.is_empty() && settlement.admission.leases.is_empty();
        (!is_over).then_some(settlement)
    }

    /// Records what a part of the response's fields tells: its head, or its trailers. Less than was estimated
    /// gives nothing back, and something else than a cost leaves the estimate.
    pub fn settle(&mut self, fields: &HeaderMap) {
        let admission = &self.admission;
        self.open.retain(|Open { limit, header, estimate }| match stated_cost(fields, header) {
            Some(Ok(cost)) => {
                admission.record(limit.name(), cost.saturating_sub(*estimate));
                false
            }
            Some(Err(NotACost)) => false,
            None => true,
        });
    }
}
