//! One file per error, under tests/config/, with all messages as a snapshot beside it.
//!
//! After changing texts, run `INSTA_UPDATE=always cargo test --test operators config`, and read the new snapshots.

use std::{collections::BTreeSet, fs, path::PathBuf, time::Duration};

use hyper::{
    StatusCode,
    header::{HeaderName, HeaderValue},
};
use proptest::prelude::*;
use tollgate::config::{
    AccessLogFormat, AccessLogSettings, Action, BodyTemplate, Config, Cost, Diagnostics, Exemption, KeyPart,
    Missing, Mode, OnLimit, StatusRange, Target,
};
use tollgate_limiter::{Algorithm, OnFailure, Rate, Scope};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/config")
}

/// Returns the names of the files with this suffix, without the suffix.
fn names(extension: &str) -> BTreeSet<String> {
    let paths =
        fs::read_dir(folder()).expect("tests/config is there").map(|entry| entry.expect("an entry").path());
    let paths = paths.filter(|path| path.extension().is_some_and(|found| found == extension));
    paths.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned())).collect()
}

fn faults(name: &str) -> Diagnostics {
    let text = fs::read_to_string(folder().join(name).with_extension("toml")).expect("a readable file");
    faults_of(&text)
}

fn faults_of(text: &str) -> Diagnostics {
    let environment = |name: &str| (name == "JWT_SECRET").then(|| "5".repeat(32));
    match Config::parse("gateway.toml", text, &environment) {
        Ok((_, warnings)) => warnings,
        Err(faults) => faults,
    }
}

#[test]
fn every_fault_is_told_as_its_snapshot_says() {
    let settings = {
        let mut settings = insta::Settings::clone_current();
        settings.set_snapshot_path("config");
        settings.set_prepend_module_to_snapshot(false);
        settings.set_omit_expression(true);
        settings
    };
    for name in names("toml") {
        let faults = faults(&name);
        assert!(!faults.is_empty(), "tests/config/{name}.toml has no fault");
        settings.bind(|| insta::assert_snapshot!(name.as_str(), faults.to_string()));
    }
}

#[test]
fn every_snapshot_has_its_file() {
    assert_eq!(names("toml"), names("snap"));
}

#[test]
fn no_password_is_told() {
    for name in names("toml") {
        let faults = faults(&name);
        for told in [faults.to_string(), faults.coloured(), format!("{faults:?}")] {
            assert!(!told.contains("hunter2"), "{told}");
        }
    }
}

const EVERY_KEY: &str = include_str!("every-key.toml");
const SEVERAL_FAULTS: &str = include_str!("config/several-faults.toml");

#[test]
fn every_key_can_be_written() {
    let (config, warnings) =
        Config::parse("every-key.toml", EVERY_KEY, &|_| None).unwrap_or_else(|faults| panic!("{faults}"));
    // Limits that only proxied requests can have are skipped for other proxies, and the certificate of the tests has another name.
    let is_expected =
        |message: &str| ["skips limit", "no certificate"].iter().any(|part| message.contains(part));
    assert!(warnings.iter().all(|warning| is_expected(&warning.message)), "{warnings}");
    let tls = config.store.tls.as_ref().unwrap();
    assert!(tls.ca.is_some() && tls.identity.is_some() && tls.server_name.is_some());
    let access_log = AccessLogSettings {
        path: Some("/var/log/tollgate/access.log".into()),
        format: AccessLogFormat::Combined,
    };
    assert_eq!(config.access_log, Some(access_log));
    let tracing = config.tracing.as_ref().unwrap();
    assert_eq!((tracing.otlp.to_string().as_str(), tracing.sample), ("https://otlp.example.com:4317", 1.0));
    let tls = config.server.tls.as_ref().unwrap();
    assert!(tls.identities.len() == 1 && tls.client_ca.is_some() && !config.server.http2);
    let limit = &config.limits["all-of-it"];
    let key = limit.key.iter().map(KeyPart::to_string).collect::<Vec<_>>();
    assert_eq!(key, ["ip", "header:x-api-key", "path:id"]);
    assert_eq!(
        (limit.mode, limit.missing, limit.on_failure),
        (Mode::Shadow, Missing::Deny, OnFailure::Allow)
    );
    assert_eq!(limit.quota.algorithm, Algorithm::Gcra { burst: Some(10) });
    assert_eq!((&limit.cost, limit.wait), (&Cost::Fixed(2), Duration::from_millis(500)));
    assert_eq!(limit.when_status[1], StatusRange { first: 500, last: 599 });
    assert_eq!(limit.overrides[0].single().unwrap(), ["10.1.2.0", "shop", "7"]);
    assert_eq!(limit.exempt[1], Exemption::Key(["::", "test", "7"].map(str::to_owned).to_vec()));
    let in_flight = &config.limits["in-flight"];
    assert_eq!(in_flight.quota.rate(), Rate { permits: 20, window_us: 10_000_000 });
    assert_eq!(in_flight.scope, Scope::Instance);
    let decisions = config.decisions.as_ref().unwrap();
    let headers = decisions.ratelimit.headers.as_ref().unwrap();
    assert_eq!((headers.limit.as_str(), headers.reset.as_str()), ("x-limit", "x-reset"));
    assert!(decisions.ratelimit.shadow && decisions.ratelimit.metadata && decisions.plain_listen.is_some());
    let rule = &config.descriptors[0];
    let parts: Vec<_> = rule.entries.iter().filter_map(|entry| entry.counts_as.as_ref()).collect();
    assert_eq!((rule.entries.len(), rule.limits.len(), parts.len()), (3, 2, 1));
    let [domain] = &config.domains[..] else { panic!("{:?}", config.domains) };
    assert_eq!((domain.name.as_str(), domain.entries.len()), ("shop", 4));
    let verdict = domain.entries[1].verdict.as_ref().unwrap();
    assert!(verdict.quota_mode && verdict.metadata.is_some() && verdict.replaces == ["all"]);
    assert_eq!(config.limits[verdict.limit.as_ref().unwrap()].mode, Mode::Shadow);
    let tokens = Cost::Response { header: HeaderName::from_static("x-tokens-used"), estimate: 100 };
    assert_eq!(config.limits["tokens"].cost, tokens);
    assert_eq!(config.limits["units"].cost, Cost::Header(HeaderName::from_static("x-cost")));
    let jwt = config.jwt.expect("a table [jwt]");
    assert_eq!((jwt.keys[0].id(), jwt.audiences.len()), (Some("of-the-tests"), 2));
    assert_eq!(config.limits["inline"].on_failure, OnFailure::Deny);
    let one = &config.routes[0];
    assert_eq!(one.limits, ["all-of-it", "inline"]);
    assert_eq!(
        (config.server.max_body, one.max_body, one.preserve_host),
        (Some(10 << 20), Some(None), false)
    );
    let edits = one.request_headers.as_ref().unwrap();
    assert_eq!((edits.remove.len(), edits.set.len(), edits.add.len()), (2, 1, 1));
    assert_eq!(one.response_headers.as_ref().unwrap().remove, ["server"]);
    let on_limit = OnLimit {
        status: StatusCode::SERVICE_UNAVAILABLE,
        body: Some((BodyTemplate::parse("later").unwrap(), HeaderValue::from_static("text/plain"))),
    };
    assert_eq!(one.on_limit, Some(on_limit));
    let redirect = &config.routes[2].action;
    assert!(matches!(redirect, Action::Redirect { status, .. } if *status == StatusCode::MOVED_PERMANENTLY));
    assert_eq!(config.routes[1].name, "api.example.com/{*rest}");
    assert_eq!(config.upstreams["mirror"].target, Target::Echo);
}

#[test]
fn the_shipped_example_is_good() {
    let (_, warnings) = Config::parse("gateway.toml", include_str!("../gateway.toml"), &|_| None)
        .unwrap_or_else(|faults| panic!("{faults}"));
    assert!(warnings.is_empty(), "{warnings}");
}

/// Characters with a meaning in TOML, and some without.
const EDIT: &str = "([\\[\\]{}=\"'.,#$@:\\\\ \n]|limits|rate|\\$\\{A|é|🚦|[a-z0-9]){0,4}";

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The file is trusted, but a typo must not stop a gateway that reloads.
    #[test]
    fn no_text_makes_it_panic(
        text in prop::sample::select(&[EVERY_KEY, SEVERAL_FAULTS]),
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0..12_usize, EDIT), 1..6),
    ) {
        let mut text = text.to_owned();
        for (at, length, edit) in edits {
            let start = text.floor_char_boundary(at.index(text.len() + 1));
            let end = text.ceil_char_boundary((start + length).min(text.len()));
            text.replace_range(start..end, &edit);
        }
        let told = faults_of(&text);
        prop_assert_eq!(told.is_empty(), told.to_string().is_empty());
    }
}

/// Returns the TOML blocks of a document.
fn blocks(document: &str) -> Vec<String> {
    let text = fs::read_to_string(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(document)).unwrap();
    let blocks = text.split("```toml\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap().to_owned()).collect()
}

#[test]
fn every_block_in_the_documents_is_a_good_configuration() {
    for document in ["README.md", "docs/configuration.md"] {
        let blocks = blocks(document);
        assert!(!blocks.is_empty(), "{document} has no TOML");
        for block in blocks {
            let faults = faults_of(&block.replace("keys.txt", "tests/known-keys.txt"));
            assert!(faults.is_empty(), "{document}: {faults}");
        }
    }
}

#[test]
fn the_documented_defaults_are_the_defaults() {
    let documented = &blocks("docs/configuration.md")[0];
    let everyday = r#"
        [upstreams.orders]
        servers = ["http://127.0.0.1:3000"]
        [limits.per-client]
        key = "ip"
        rate = "100/10s"
        [[routes]]
        name = "orders"
        path = "/v1/orders/{id}"
        upstream = "orders"
        limits = ["per-client"]
    "#;
    let parse = |text| Config::parse("gateway.toml", text, &|_| None).unwrap().0;
    assert_eq!(parse(documented), parse(everyday));
}
