//! The charges of a request, by the quotas that hold now.

use crate::{
    Ask, Limited, Origin, Refusal, Scope,
    charged_ask::{ChargedAsk, ChargedAsks},
    store::Charge,
};

use super::{Limiter, failure::NO_ROOM};

impl Limiter {
    /// Returns the charges of a request. A cost that never fits is refused without asking.
    pub(super) fn charges_of<'r>(&self, asks: &'r [Ask]) -> Result<ChargedAsks<'r>, Refusal> {
        let mut asked = ChargedAsks::with_capacity(asks.len());
        for ask in asks {
            asked.push(self.charged(ask));
            let ban = asked.last().and_then(|own| own.look_at_ban(&self.key_prefix));
            asked.extend(ban);
        }
        join_equal(&mut asked);
        if asked.iter().all(ChargedAsk::is_within_quota) {
            return Ok(asked);
        }
        refuse_what_never_fits(&asked)?;
        asked.retain(|asked| asked.is_within_quota());
        Ok(asked)
    }

    /// Returns the charge of an ask, by the quotas that hold now.
    pub(super) fn charged<'r>(&self, ask: &'r Ask) -> ChargedAsk<'r> {
        let (charge, scope) = self.charge(ask);
        let common = self.quota(&ask.limit, None);
        // What counts in another kind of bucket has nothing in common with the other keys.
        let common = if common.algorithm == charge.quota.algorithm { common } else { charge.quota };
        let mut asked = ChargedAsk::new(ask, charge, common);
        asked.scope = scope;
        asked
    }

    /// Returns the charge of an ask on its key's bucket, and the scope that holds now.
    pub(super) fn charge(&self, ask: &Ask) -> (Charge, Scope) {
        match self.overridden.of(&ask.limit, Some(&ask.key)) {
            Some((rate, scope)) => (ask.charge(&self.key_prefix, rate), scope.unwrap_or(ask.limit.scope)),
            None => (ask.charge(&self.key_prefix, ask.rate_of_file()), ask.limit.scope),
        }
    }
}

/// Adds up the costs of equal buckets.
fn join_equal(asked: &mut ChargedAsks<'_>) {
    let mut at = 1;
    while at < asked.len() {
        let (before, rest) = asked.split_at_mut(at);
        if before.iter_mut().any(|known| known.join(&mut rest[0])) {
            asked.remove(at);
        } else {
            at += 1;
        }
    }
}

/// Refuses without touching a store where a limit asks for more than it ever allows.
fn refuse_what_never_fits(asked: &ChargedAsks<'_>) -> Result<(), Refusal> {
    let never = asked.iter().filter(|asked| !asked.is_within_quota() && !asked.charge.shadow);
    let standings = never.map(|asked| asked.standing(NO_ROOM, Origin::LocalRefusal));
    let limited = Limited { standings: standings.collect() };
    if limited.standings.is_empty() { Ok(()) } else { Err(Refusal::Limited(Box::new(limited))) }
}
