//! `/api/limits`: shows limits and the use of keys, and changes rates for all gateways on the store.

use std::{error::Error, sync::Arc, time::Duration};

use axum::{
    Extension, Json, Router,
    extract::{Path, State, rejection::JsonRejection},
    http::StatusCode,
    routing::{get, put},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tollgate_limiter::{
    Algorithm, Ask, Key, Limit, Override, Quota, Scope, SetWhen, StoreError, duration, read_rate,
    store::overrides::OVERRIDES_MOST,
};

use crate::{
    gateway::Gateway,
    rules::{Rule, key},
};

use super::{Admin, Operator, Problem};

type Author = Extension<Operator>;
type JsonResult = Result<Json<Value>, Problem>;
type ChangeBody = Result<Json<Change>, JsonRejection>;

pub(super) fn router() -> Router<Arc<Admin>> {
    Router::new()
        .route("/api/limits", get(list))
        .route("/api/limits/{limit}/override", put(set_of_limit).delete(unset_of_limit))
        .route("/api/limits/{limit}/keys/{key}", get(show).delete(reset))
        .route("/api/limits/{limit}/keys/{key}/override", put(set_of_key).delete(unset_of_key))
}

/// A rate to set instead of the file's.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    /// The rate as written in the file, or `0` to refuse every request.
    rate: String,
    /// The scope: `shared` or `instance`.
    scope: Option<String>,
    /// The time after which the change ends.
    r#for: Option<String>,
    #[serde(default)]
    if_absent: bool,
}

/// A limit of the running gateway.
struct LimitHandle {
    gateway: Arc<Gateway>,
    rule: Arc<Rule>,
}

impl Admin {
    fn place(&self, limit: &str) -> Result<LimitHandle, Problem> {
        let gateway = self.gateway.load_full();
        match gateway.rules().get(limit).cloned() {
            Some(rule) => Ok(LimitHandle { gateway, rule }),
            None => {
                let names: Vec<&str> = gateway.rules().keys().map(String::as_str).collect();
                let detail = format!("unknown limit `{limit}`; the limits are: {}", names.join(", "));
                Err(Problem::new(StatusCode::NOT_FOUND, detail))
            }
        }
    }
}

impl LimitHandle {
    fn limit(&self) -> &Limit {
        self.rule.limit()
    }

    fn ask(&self, key: &str) -> Result<Ask, Problem> {
        let key = key::key_of(self.rule.config(), key).map_err(bad_request)?;
        Ok(self.rule.ask_for(key))
    }

    /// Returns the rate that is set for the limit, or for the key, as far as this gateway knows.
    fn known(&self, key: Option<&Key>) -> Option<Override> {
        let key = key.map(|key| format!(" {}", key.as_str())).unwrap_or_default();
        let of = format!("{}{key}", self.limit().name());
        let known = self.gateway.limiter().known_overrides();
        known.into_iter().find_map(|(known, set)| (known == of).then_some(set))
    }

    async fn set(&self, key: Option<&Key>, author: Author, change: ChangeBody) -> JsonResult {
        let Json(change) = change.map_err(Problem::from)?;
        let (limit, limiter) = (self.limit(), self.gateway.limiter());
        let set = Override {
            rate: read_rate(limit, &change.rate).map_err(bad_request)?,
            scope: change.scope.as_deref().map(read_scope).transpose()?,
            lasts: change.r#for.as_deref().map(read_duration).transpose()?,
        };
        let when = if change.if_absent { SetWhen::IfAbsent } else { SetWhen::Always };
        let replaced = self.known(key);
        let is_set = limiter.set_override(limit, key, &set, when).await?;
        if is_set {
            let rate = Quota::new(limit.quota().algorithm, set.rate);
            let scope = change.scope.map(|scope| format!(", scope {scope}")).unwrap_or_default();
            let lasts =
                set.lasts.map(|lasts| format!(" for {}", duration::DurationText(lasts.as_micros() as u64)));
            let lasts = lasts.unwrap_or_default();
            // Another scope has other counts.
            let kept = if set.scope.is_none() { ": counts kept" } else { "" };
            self.log(author, key, &format!("rate set to {rate}{scope}{lasts}{kept}"));
        }
        let mut shown = show_override(limit, &set);
        shown["set"] = json!(is_set);
        if let Some(replaced) = replaced.filter(|_| is_set) {
            shown["replaced"] = show_override(limit, &replaced);
        }
        if let Some(key) = key {
            shown["key"] = json!(key.as_str());
        }
        if let Some(network) = key.and_then(|key| key::network_of(self.rule.config(), key)) {
            shown["network"] = json!(network);
        }
        Ok(Json(shown))
    }

    async fn unset(&self, key: Option<&Key>, author: Author) -> JsonResult {
        let was_set = self.gateway.limiter().unset_override(self.limit(), key).await?;
        if was_set {
            self.log(author, key, "rate set back to the file's: counts kept");
        }
        Ok(Json(json!({ "unset": was_set })))
    }

    /// Logs a change and its author.
    fn log(&self, Extension(author): Author, key: Option<&Key>, change: &str) {
        let key = key.map(|key| format!(", key `{}`", key.as_str())).unwrap_or_default();
        tracing::info!(who = %author, "limit `{}`{key}: {change}", self.limit().name());
    }
}

async fn list(State(admin): State<Arc<Admin>>) -> Json<Value> {
    let gateway = admin.gateway.load_full();
    let limits = ask_for_limits(&gateway).await;
    Json(limits.unwrap_or_else(|error| known_limits(&gateway, &error)))
}

/// Returns the limits, with what the store has about them.
async fn ask_for_limits(gateway: &Gateway) -> Result<Value, StoreError> {
    let overrides = gateway.limiter().overrides().await?;
    let mut limits = Vec::with_capacity(gateway.rules().len());
    for rule in gateway.rules().values() {
        let bans = rule.last_bans(gateway.limiter()).await?;
        limits.push(show_limit(rule, &overrides, &bans));
    }
    Ok(limits.into())
}

/// Returns the limits with what is known without the store, and why that gives no answer.
fn known_limits(gateway: &Gateway, error: &StoreError) -> Value {
    let (overrides, cause) = (gateway.limiter().known_overrides(), with_cause(error));
    let limits = gateway.rules().values().map(|rule| {
        let mut shown = show_limit(rule, &overrides, &[]);
        shown["store_error"] = json!(cause);
        shown
    });
    limits.collect()
}

/// Shows a limit, with the rates of its keys and their bans.
fn show_limit(rule: &Rule, overrides: &[(String, Override)], bans: &[(Key, Duration)]) -> Value {
    let limit = rule.limit();
    let of_key = |of: &str| of.strip_prefix(limit.name())?.strip_prefix(' ').map(str::to_owned);
    let keys = overrides.iter().filter_map(|(of, set)| {
        let mut shown = show_override(limit, set);
        shown["key"] = json!(of_key(of)?);
        Some(shown)
    });
    let own = overrides.iter().find(|(of, _)| of == limit.name());
    let of_file = rule.own_rates().map(
        |(key, rate)| json!({ "key": key, "rate": Quota::new(limit.quota().algorithm, rate).to_string() }),
    );
    let bans = bans.iter().map(|(key, left)| {
        let written = key::written(rule.config(), key.as_str());
        json!({ "key": key.as_str(), "written": written, "ends_in_ms": left.as_millis() as u64 })
    });
    json!({
        "limit": limit.name(),
        "rate": limit.quota().to_string(),
        "algorithm": limit.quota().algorithm.name(),
        "override": own.map(|(_, set)| show_override(limit, set)),
        "keys": keys.collect::<Vec<_>>(),
        "file_keys": of_file.collect::<Value>(),
        "ban": rule.config().ban.map(|ban| ban.to_string()),
        "bans": bans.collect::<Value>(),
    })
}

async fn show(State(admin): State<Arc<Admin>>, Path((limit, key)): Path<(String, String)>) -> JsonResult {
    let place = admin.place(&limit)?;
    let ask = place.ask(&key)?;
    let state = place.gateway.limiter().peek(&ask).await?;
    let is_exact = state.quota.algorithm != Algorithm::Concurrency;
    let mut shown = json!({
        "limit": limit,
        "key": ask.key().as_str(),
        "rate": state.quota.to_string(),
        "used": state.usage.used,
        "remaining": u64::from(state.quota.capacity()).saturating_sub(state.usage.used),
        "retry_after_ms": state.usage.delay_us.filter(|_| is_exact).map(|delay_us| delay_us.div_ceil(1_000)),
        "override": state.is_overridden,
    });
    if state.is_by_network {
        shown["by_network"] = json!(true);
    }
    if let Some(banned_for) = state.banned_for {
        shown["banned_for_ms"] = json!(banned_for.as_micros().div_ceil(1_000) as u64);
    }
    Ok(Json(shown))
}

async fn reset(
    State(admin): State<Arc<Admin>>,
    author: Author,
    Path((limit, key)): Path<(String, String)>,
) -> JsonResult {
    let place = admin.place(&limit)?;
    let ask = place.ask(&key)?;
    place.gateway.limiter().reset(&ask).await?;
    place.log(author, Some(ask.key()), "count reset");
    Ok(Json(json!({ "limit": limit, "key": ask.key().as_str(), "reset": true })))
}

async fn set_of_limit(
    State(admin): State<Arc<Admin>>,
    author: Author,
    Path(limit): Path<String>,
    change: ChangeBody,
) -> JsonResult {
    admin.place(&limit)?.set(None, author, change).await
}

async fn set_of_key(
    State(admin): State<Arc<Admin>>,
    author: Author,
    Path((limit, key)): Path<(String, String)>,
    change: ChangeBody,
) -> JsonResult {
    let place = admin.place(&limit)?;
    if key::is_pattern(place.rule.config(), &key) {
        return Err(bad_request(
            "`*` stands for any value only in the file's `overrides`\n\
             name a single key, or none to set the rate of the whole limit",
        ));
    }
    place.set(Some(place.ask(&key)?.key()), author, change).await
}

async fn unset_of_limit(
    State(admin): State<Arc<Admin>>,
    author: Author,
    Path(limit): Path<String>,
) -> JsonResult {
    admin.place(&limit)?.unset(None, author).await
}

async fn unset_of_key(
    State(admin): State<Arc<Admin>>,
    author: Author,
    Path((limit, key)): Path<(String, String)>,
) -> JsonResult {
    let place = admin.place(&limit)?;
    place.unset(Some(place.ask(&key)?.key()), author).await
}

fn show_override(limit: &Limit, set: &Override) -> Value {
    let scope = set.scope.map(|scope| match scope {
        Scope::Shared => "shared",
        Scope::Instance => "instance",
    });
    json!({
        "rate": Quota::new(limit.quota().algorithm, set.rate).to_string(),
        "scope": scope,
        "ends_in_ms": set.lasts.map(|lasts| lasts.as_millis() as u64),
    })
}

fn read_scope(text: &str) -> Result<Scope, Problem> {
    match text {
        "shared" => Ok(Scope::Shared),
        "instance" => Ok(Scope::Instance),
        _ => Err(bad_request(format!("unknown scope `{text}`\nuse \"shared\" or \"instance\""))),
    }
}

fn read_duration(text: &str) -> Result<Duration, Problem> {
    match duration::parse_us(text).map_err(bad_request)? {
        0 => Err(bad_request("`for` is too short\nleave it out, or unset the rate")),
        us => Ok(Duration::from_micros(us)),
    }
}

fn bad_request(message: impl AsRef<str>) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, message.as_ref().replace('\n', ": "))
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::OverridesFull => {
                Self::new(StatusCode::CONFLICT, format!("{error}: unset some of these {OVERRIDES_MOST}"))
            }
            StoreError::Unsupported(_) => bad_request(error.to_string()),
            _ => Self::new(StatusCode::SERVICE_UNAVAILABLE, with_cause(&error)),
        }
    }
}

fn with_cause(error: &StoreError) -> String {
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}
