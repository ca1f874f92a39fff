//! The rates of a configuration that was loaded while requests waited.
//!
//! A request asks the limits of the configuration that it began with. While it waits, another one may be loaded, and
//! the request is held to its rates: nobody waits for an hour because the rate was a mistake. The other terms of its
//! limits stay as they were: the time that it may wait, the cost, and the bucket. So if the algorithm has changed,
//! its `burst` or its `cells`, the rate does, too.

use std::{collections::HashMap, fmt, sync::Arc};

use arc_swap::ArcSwap;

use crate::{
    Ask, Asks, Key, Limit,
    algorithm::{Algorithm, Rate},
};

/// The rates by the name of their limit. None are kept until the first reload.
#[derive(Debug, Default)]
pub(crate) struct Renewed(ArcSwap<HashMap<String, Rates>>);

/// A function that returns the rate of a key which has one of its own.
///
/// # Examples
///
/// ```
/// use tollgate_limiter::{Key, RateOfKey};
///
/// let of_vip: RateOfKey = Box::new(|key| (*key == Key::from("vip")).then(|| "50/min".parse().unwrap()));
/// assert!(of_vip(&Key::from("vip")).is_some() && of_vip(&Key::from("alice")).is_none());
/// ```
pub type RateOfKey = Box<dyn Fn(&Key) -> Option<Rate> + Send + Sync>;

/// The rates of a limit.
struct Rates {
    algorithm: Algorithm,
    rate: Rate,
    own: RateOfKey,
}

impl fmt::Debug for Rates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { algorithm, rate, own: _ } = self;
        f.debug_struct("Rates").field("algorithm", algorithm).field("rate", rate).finish_non_exhaustive()
    }
}

impl Renewed {
    /// Keeps the rates of these limits, and of no others.
    pub(crate) fn replace<'l>(&self, limits: impl IntoIterator<Item = (&'l Limit, RateOfKey)>) {
        let rates = limits.into_iter().map(|(limit, own)| {
            let rates = Rates { algorithm: limit.quota().algorithm, rate: limit.quota().rate(), own };
            (limit.name().to_owned(), rates)
        });
        self.0.store(Arc::new(rates.collect()));
    }

    /// Returns what a request asks at the rate that its limit has now.
    pub(crate) fn ask(&self, ask: &Ask) -> Ask {
        let renewed = self.0.load();
        let rates = renewed.get(ask.limit.name());
        match rates.filter(|rates| rates.algorithm == ask.limit.quota().algorithm) {
            Some(rates) => ask.clone().rate(Some((rates.own)(ask.key()).unwrap_or(rates.rate))),
            None => ask.clone(),
        }
    }

    /// Returns all that a request asks, at the rates that its limits have now.
    pub(crate) fn asks(&self, asks: &[Ask]) -> Asks {
        asks.iter().map(|ask| self.ask(ask)).collect()
    }
}
