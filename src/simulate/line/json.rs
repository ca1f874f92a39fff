//! The JSON format: an object per line, with the field names of this gateway's log or the usual ones of
//! nginx, Caddy and Traefik. If several names for the same thing occur, the first one in its list counts.

use std::{borrow::Cow, collections::HashMap, fmt, str::FromStr, sync::LazyLock};

use hyper::{
    Method, StatusCode, Uri,
    header::{HeaderName, HeaderValue, REFERER, USER_AGENT},
};
use serde::{
    Deserialize, Deserializer,
    de::{self, IgnoredAny},
};
use serde_json::{Map, Value};

use super::{
    DecisionInLog, Logged, Wanted, read_client, read_method, read_number_of_time, read_request, read_target,
    read_time,
};

const TIME: &[&str] = &["time", "@timestamp", "timestamp", "ts", "msec", "time_iso8601", "time_local"];
const CLIENT: &[&str] = &["client", "client_ip", "remote_addr", "remote_ip", "clientip", "ip", "ClientHost"];
const METHOD: &[&str] = &["method", "request_method", "verb", "RequestMethod"];
const TARGET: &[&str] = &["target", "request_uri", "RequestPath", "uri", "url", "path"];
const ARGUMENTS: &[&str] = &["args", "query_string"];
const HOST: &[&str] = &["http_host", "host", "RequestHost", "server_name"];
const STATUS: &[&str] = &["status", "status_code", "DownstreamStatus"];
const REFERERS: &[&str] = &["referer", "http_referer", "referrer"];
const USER_AGENTS: &[&str] = &["user_agent", "http_user_agent", "agent"];
/// The duration of this gateway's log, in milliseconds. Its time is that of the arrival; the other servers
/// log the time of the end.
const TOOK_MS: &[&str] = &["duration_ms"];
/// The durations of nginx and Caddy, in seconds.
const TOOK_S: &[&str] = &["request_time", "duration"];
/// The duration of Traefik, in nanoseconds.
const TOOK_NS: &[&str] = &["Duration"];
const REQUEST: &[&str] = &["request"];
const HEADERS: &[&str] = &["headers", "request_headers"];
const ANSWER_HEADERS: &[&str] = &["resp_headers", "response_headers"];
const LIMITS: &[&str] = &["limits"];

/// All field names, in groups of the same meaning.
const FIELDS: [&[&str]; 16] = [
    TIME,
    CLIENT,
    METHOD,
    TARGET,
    ARGUMENTS,
    HOST,
    STATUS,
    REFERERS,
    USER_AGENTS,
    TOOK_MS,
    TOOK_S,
    TOOK_NS,
    REQUEST,
    HEADERS,
    ANSWER_HEADERS,
    LIMITS,
];

/// The group of each name in [`FIELDS`], and its rank within the group.
static PLACES: LazyLock<HashMap<&str, (usize, usize)>> = LazyLock::new(|| {
    let lists = FIELDS.iter().enumerate();
    let ranked = |(place, names): (usize, &&[&'static str])| {
        names.iter().enumerate().map(move |(rank, name)| (*name, (place, rank))).collect::<Vec<_>>()
    };
    lists.flat_map(ranked).collect()
});

pub(super) fn read(line: &[u8], wanted: &Wanted) -> Result<Logged, &'static str> {
    let found: FoundFields = serde_json::from_slice(line).map_err(|_| "invalid JSON object")?;
    found.logged(wanted)
}

/// The known fields of a line, by their group in [`FIELDS`], each with the rank of its name. Also the header
/// fields that nginx variables contain.
#[derive(Default)]
struct FoundFields {
    fields: [Option<(usize, Value)>; FIELDS.len()],
    headers: Vec<(HeaderName, Value)>,
    answer_headers: Vec<(HeaderName, Value)>,
}

impl<'de> Deserialize<'de> for FoundFields {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(FoundFieldsVisitor)
    }
}

struct FoundFieldsVisitor;

impl<'de> de::Visitor<'de> for FoundFieldsVisitor {
    type Value = FoundFields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<FoundFields, A::Error> {
        let mut found = FoundFields::default();
        while let Some(FieldKey(name)) = map.next_key()? {
            if let Some(&(place, rank)) = PLACES.get(&*name) {
                let value = map.next_value()?;
                let field = &mut found.fields[place];
                if field.as_ref().is_none_or(|(other, _)| rank < *other) {
                    *field = Some((rank, value));
                }
            } else if let Some(header) = variable(&name, "http_") {
                found.headers.push((header, map.next_value()?));
            } else if let Some(header) =
                variable(&name, "sent_http_").or_else(|| variable(&name, "upstream_http_"))
            {
                found.answer_headers.push((header, map.next_value()?));
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

/// A field name, copied only if it has escapes.
#[derive(Deserialize)]
struct FieldKey<'n>(#[serde(borrow)] Cow<'n, str>);

/// Returns the header field that an nginx variable contains: `http_x_api_key` is `x-api-key`.
fn variable(name: &str, prefix: &str) -> Option<HeaderName> {
    name.strip_prefix(prefix)?.replace('_', "-").parse().ok()
}

impl FoundFields {
    fn take(&mut self, names: &'static [&'static str]) -> Option<Value> {
        let place = FIELDS.iter().position(|other| *other == names)?;
        self.fields[place].take().map(|(_, value)| value).filter(|value| !value.is_null())
    }

    fn text(&mut self, names: &'static [&'static str]) -> Option<String> {
        match self.take(names)? {
            Value::String(text) => Some(text),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        }
    }

    fn number(&mut self, names: &'static [&'static str]) -> Option<f64> {
        self.text(names)?.parse().ok().filter(|number: &f64| *number >= 0.0)
    }

    /// Adds the fields of Caddy's request object to those of the line.
    fn spread(&mut self, request: Map<String, Value>) {
        for (name, value) in request {
            let place = PLACES.get(&*name).map(|(place, _)| *place);
            if let Some(field) = place.map(|place| &mut self.fields[place]).filter(|field| field.is_none()) {
                *field = Some((0, value));
            }
        }
    }

    fn logged(mut self, wanted: &Wanted) -> Result<Logged, &'static str> {
        let request = match self.take(REQUEST) {
            Some(Value::Object(fields)) => {
                self.spread(fields);
                None
            }
            Some(Value::String(line)) => Some(line),
            _ => None,
        };
        let at_us = match self.take(TIME) {
            Some(Value::String(text)) => read_time(&text)?,
            Some(Value::Number(number)) => read_number_of_time(number.as_f64().unwrap_or(-1.0))?,
            _ => return Err("no time"),
        };
        let client = read_client(&self.text(CLIENT).ok_or("no client")?)?;
        let (method, target) = self.method_and_target(request)?;
        let took_at_its_begin = self.number(TOOK_MS).map(|ms| ms * 1e3);
        let took_at_its_end = self.number(TOOK_S).map(|s| s * 1e6);
        let took_at_its_end = took_at_its_end.or(self.number(TOOK_NS).map(|ns| ns / 1e3)).map(|us| us as u64);
        let is_present = |text: &String| !super::is_absent(text.as_bytes());
        let mut logged = Logged {
            at_us: at_us - took_at_its_end.unwrap_or(0).min(at_us),
            took_us: took_at_its_begin.map(|us| us as u64).or(took_at_its_end),
            client,
            method,
            target,
            host: self.text(HOST).filter(is_present).and_then(|host| HeaderValue::from_str(&host).ok()),
            status: self.text(STATUS).and_then(|status| StatusCode::from_str(&status).ok()),
            headers: Vec::new(),
            has_all_headers: false,
            hidden: Vec::new(),
            answer_headers: Vec::new(),
            limits: self.take(LIMITS).map(read_limits).unwrap_or_default(),
        };
        self.note_request_headers(&mut logged, wanted);
        self.note_response_headers(&mut logged, wanted);
        Ok(logged)
    }

    /// Returns method and target, from fields of their own or from the first line of the request.
    fn method_and_target(&mut self, request: Option<String>) -> Result<(Method, Uri), &'static str> {
        match (self.text(METHOD), self.text(TARGET), request) {
            (Some(method), Some(target), _) => {
                let arguments = self.text(ARGUMENTS).filter(|text| !text.is_empty() && !target.contains('?'));
                let target = arguments.map(|arguments| format!("{target}?{arguments}")).unwrap_or(target);
                Ok((read_method(method.as_bytes())?, read_target(target.as_bytes())?))
            }
            (_, _, Some(line)) => read_request(line.as_bytes()),
            _ => Err("no method or target"),
        }
    }

    fn note_request_headers(&mut self, logged: &mut Logged, wanted: &Wanted) {
        for (names, name) in [(REFERERS, REFERER), (USER_AGENTS, USER_AGENT)] {
            if let Some(value) = self.text(names) {
                logged.note_header(wanted, &name, value.as_bytes());
            }
        }
        for (name, value) in self.headers.drain(..) {
            logged.note_header(wanted, &name, value.as_str().unwrap_or_default().as_bytes());
        }
        if let Some(Value::Object(fields)) = self.take(HEADERS) {
            logged.has_all_headers = true;
            for (name, value) in lines(&fields) {
                logged.note_header(wanted, &name, value.as_bytes());
            }
        }
    }

    fn note_response_headers(&mut self, logged: &mut Logged, wanted: &Wanted) {
        if let Some(Value::Object(fields)) = self.take(ANSWER_HEADERS) {
            self.answer_headers.extend(lines(&fields).map(|(name, value)| (name, value.into())));
        }
        for (name, value) in self.answer_headers.drain(..) {
            let value = value.as_str().filter(|value| !super::is_absent(value.as_bytes()));
            let value = value.and_then(|value| HeaderValue::from_str(value).ok());
            logged
                .answer_headers
                .extend(value.map(|value| (name, value)).filter(|(name, _)| wanted.of_answer.contains(name)));
        }
    }
}

/// Returns the lines of a header object, whose values are strings or lists of strings.
fn lines(fields: &Map<String, Value>) -> impl Iterator<Item = (HeaderName, &str)> {
    fields.iter().flat_map(|(name, values)| {
        let name = name.parse::<HeaderName>().ok();
        let values = values.as_array().map(Vec::as_slice).unwrap_or(std::slice::from_ref(values));
        values.iter().filter_map(move |value| Some((name.clone()?, value.as_str()?)))
    })
}

/// The most bytes of a key. This gateway's keys are never longer, since their values have at most 64 bytes.
const KEY_BYTES_MOST: usize = 4 << 10;

/// Parses the decisions in this gateway's log.
fn read_limits(limits: Value) -> Vec<(String, DecisionInLog)> {
    let Value::Array(limits) = limits else { return Vec::new() };
    let of_limit = |limit: Value| {
        let is_key =
            |key: &str| key.len() <= KEY_BYTES_MOST && key.bytes().all(|byte| byte.is_ascii_graphic());
        let decision = match (limit["key"].as_str(), limit["decision"].as_str()) {
            (Some(key), _) if !is_key(key) => return None,
            (Some(key), _) => DecisionInLog::Key(key.to_owned()),
            (None, Some("exempt")) => DecisionInLog::Exempt,
            (None, Some("skipped")) => DecisionInLog::Skipped,
            (None, Some("refused")) => DecisionInLog::Denied,
            _ => return None,
        };
        Some((limit["limit"].as_str()?.to_owned(), decision))
    };
    limits.into_iter().filter_map(of_limit).collect()
}
