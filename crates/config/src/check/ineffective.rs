//! Finds limits that never refuse a request, since another one of the same key or the upstream is stricter.

use std::collections::BTreeSet;

use tollgate_limiter::{Algorithm, StoreUrl};

use super::Check;
use crate::{Action, KeyPart, LimitSettings, Mode, RouteSettings, error::Diagnostic};

impl Check<'_, '_> {
    /// Warns of a limit of all requests in flight that is above the upstream's `max_connections`. Only without Redis: other gateways
    /// would take part of a shared limit.
    pub(super) fn warn_of_fuller_upstreams(&mut self, routes: &[RouteSettings], store: &StoreUrl) {
        if *store != StoreUrl::Memory {
            return;
        }
        let mut faults = Vec::new();
        for (name, defined) in &self.limits {
            let Some(limit) = &defined.limit else { continue };
            let upstreams: BTreeSet<_> = routes
                .iter()
                .filter(|route| route.limits.contains(name))
                .map(|route| match &route.action {
                    Action::Upstream(upstream) => Some(upstream),
                    _ => None,
                })
                .collect();
            let [Some(upstream)] = upstreams.into_iter().collect::<Vec<_>>()[..] else { continue };
            let Some(Some(settings)) = self.upstreams.get(upstream) else { continue };
            let most = settings.max_connections;
            let is_of_all = limit.quota.algorithm == Algorithm::Concurrency && limit.key == [KeyPart::Global];
            if is_of_all && !settings.http2 && limit.quota.permits as usize > most {
                let fault = format!(
                    "limit `{name}` never refuses a request: upstream `{upstream}` has at most {most} in flight, and then answers 503"
                );
                let help =
                    format!("lower the rate to at most {most}, or raise max_connections of the upstream");
                faults.push(Diagnostic::warning(fault).at(&defined.place, "").help(help));
            }
        }
        faults.into_iter().for_each(|fault| self.fault(fault));
    }

    /// Warns of limits that never refuse a request: wherever they apply, a stricter one of the same key does, too.
    pub(super) fn warn_of_ineffective_limits(&mut self, routes: &[RouteSettings]) {
        let mut faults = Vec::new();
        for (name, defined) in &self.limits {
            let Some(limit) = &defined.limit else { continue };
            let mut lists = routes.iter().map(|route| &route.limits).filter(|list| list.contains(name));
            let Some(first) = lists.next() else { continue };
            let applies =
                |other: &&String| first.contains(other) && lists.clone().all(|list| list.contains(other));
            let others = first.iter().filter(applies).filter(|other| *other != name);
            let strictest = others
                .filter_map(|other| self.limits.get(other)?.limit.as_ref())
                .filter_map(|other| Some((other, most_within(other, limit)?)))
                .find(|(other, most)| {
                    *most < limit.quota.permits.into() || is_preferred(other, limit, *most)
                });
            if let Some((other, most)) = strictest {
                let fault = format!(
                    "limit `{name}` never refuses a request: `{}` admits at most {most} in its window",
                    other.name
                );
                let help = "lower its rate, or remove it: each request that it counts is counted by both";
                faults.push(Diagnostic::warning(fault).at(&defined.place, "").help(help));
            }
        }
        faults.into_iter().for_each(|fault| self.fault(fault));
    }
}

/// Returns true if two limits are equally strict, and this is the one to keep.
fn is_preferred(kept: &LimitSettings, limit: &LimitSettings, most: u64) -> bool {
    most == u64::from(limit.quota.permits)
        && (most_within(limit, kept).is_none_or(|back| back > kept.quota.permits.into())
            || kept.name < limit.name)
}

/// Returns the most permits that a limit admits within the window of another. `None` if they count different requests or keys, or if
/// the rates of a key may be others.
fn most_within(limit: &LimitSettings, other: &LimitSettings) -> Option<u64> {
    let is_plain = |limit: &LimitSettings| {
        limit.quota.algorithm == Algorithm::SlidingWindow
            && limit.mode == Mode::Enforce
            && limit.overrides.is_empty()
            && limit.when_status.is_empty()
            && !(limit.costs_vary || limit.refunds)
            && limit.rate_from.is_none()
            && limit.known_keys.is_none()
            && limit.ban.is_none()
    };
    let counts_alike = limit.key == other.key
        && (&limit.cost, limit.usage, limit.scope) == (&other.cost, other.usage, other.scope)
        && (limit.missing, limit.prefixes) == (other.missing, other.prefixes)
        && (&limit.exempt, limit.on_failure) == (&other.exempt, other.on_failure);
    let windows = other.quota.window_us.div_ceil(limit.quota.window_us.max(1));
    (is_plain(limit) && is_plain(other) && counts_alike)
        .then(|| windows.saturating_mul(limit.quota.permits.into()))
}
