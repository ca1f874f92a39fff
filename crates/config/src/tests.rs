use std::time::Duration;

use super::*;
use tollgate_routing::Matcher;

use tollgate_limiter::{OnFailure, Prefixes, Rate, RatelimitHeaders, Scope, StoreUrl};

const EVERYDAY: &str = r#"
        [server]
        listen = "127.0.0.1:8080"

        [store]
        url = "redis://127.0.0.1:6379"

        [upstreams.orders]
        servers = ["http://127.0.0.1:3000"]

        [limits.per-client]
        key  = "ip"
        rate = "100/10s"

        [[routes]]
        path     = "/v1/orders/{id}"
        upstream = "orders"
        limits   = ["per-client"]
    "#;

fn config(text: &str) -> Config {
    let (config, warnings) =
        Config::parse("gateway.toml", text, &|_| None).unwrap_or_else(|faults| panic!("{faults}"));
    assert!(warnings.is_empty(), "{warnings}");
    config
}

fn read_with(overrides: &FlagOverrides, text: &str) -> Result<Config, String> {
    let read = read("gateway.toml", text, &|_| None, overrides, &mut Sources::default());
    read.map(|(config, _)| config).map_err(|faults| faults.to_string())
}

#[test]
fn the_everyday_form_means_the_stated_defaults() {
    let second = Duration::from_secs(1);
    let expected = Config {
        server: ServerSettings {
            listen: vec![ListenAddress::Tcp(([127, 0, 0, 1], 8080).into())],
            workers: 0,
            trusted_proxies: vec![],
            proxy_protocol: false,
            http2: true,
            tls: None,
            ratelimit_headers: RatelimitHeaders::Draft11,
            max_header_bytes: 32 * 1024,
            max_body: None,
            max_connections: 20_000,
            escaped_slashes: EscapedSlashes::Keep,
            request_id: true,
            reuse_port: false,
            health: None,
            header_timeout: 10 * second,
            idle_timeout: 75 * second,
            drain_timeout: 30 * second,
        },
        store: StoreSettings {
            url: "redis://127.0.0.1:6379".parse().expect("a URL"),
            tls: None,
            timeout: second / 20,
            instances: 1,
            replicated: false,
            key_prefix: "tollgate".to_owned(),
            max_memory: 256 * 1024 * 1024,
        },
        admin: None,
        decisions: None,
        log: LogSettings { format: LogFormat::Text, level: tracing::Level::INFO },
        access_log: None,
        tracing: None,
        upstreams: BTreeMap::from([(
            "orders".to_owned(),
            UpstreamSettings {
                target: Target::Servers(vec![Weighted {
                    url: ServerUrl::Tcp { tls: false, host: "127.0.0.1".to_owned(), port: 3000 },
                    weight: 1,
                }]),
                balance: Balance::LeastRequest,
                connect_timeout: 2 * second,
                response_timeout: 30 * second,
                idle_timeout: 4 * second,
                retries: Retries { attempts: 1, budget: Percent(20) },
                health: None,
                eject: None,
                http2: false,
                tls: None,
                max_connections: 1024,
            },
        )]),
        limits: BTreeMap::from([(
            "per-client".to_owned(),
            Arc::new(LimitSettings {
                name: "per-client".to_owned(),
                key: vec![KeyPart::Ip],
                quota: Rate { permits: 100, window_us: 10_000_000 }.into(),
                cost: Cost::Fixed(1),
                costs_vary: false,
                when_status: vec![],
                scope: Scope::Shared,
                wait: Duration::ZERO,
                mode: Mode::Enforce,
                missing: Missing::Ip,
                known_keys: None,
                unknown: UnknownKey::Ip,
                prefixes: Prefixes { ipv4: 32, ipv6: 64 },
                exempt: vec![],
                overrides: vec![],
                rate_from: None,
                plain: false,
                on_failure: OnFailure::Local,
                usage: CostUsage::Charged,
                refunds: false,
                ban: None,
                redisson_name: None,
            }),
        )]),
        jwt: None,
        routes: vec![RouteSettings {
            name: "/v1/orders/{id}".to_owned(),
            matcher: Matcher {
                host: None,
                path: "/v1/orders/{id}".parse().expect("a pattern"),
                methods: vec![],
                headers: vec![],
                query: vec![],
                claims: vec![],
            },
            action: Action::Upstream("orders".to_owned()),
            limits: vec!["per-client".to_owned()],
            costs: BTreeMap::new(),
            rewrite: None,
            request_headers: None,
            response_headers: None,
            timeout: None,
            max_body: None,
            preserve_host: true,
            requires: None,
            on_limit: None,
        }],
        descriptors: vec![],
        domains: vec![],
        xds: None,
    };
    assert_eq!(config(EVERYDAY), expected);
    assert_eq!(
        config(&EVERYDAY.replace("[store]\n        url = \"redis://127.0.0.1:6379\"", "")).store.url,
        StoreUrl::Memory
    );
}

#[test]
fn flags_replace_the_values_of_the_file_and_their_faults() {
    let text = EVERYDAY.replace("redis://127.0.0.1:6379", "${NOWHERE}").replace("127.0.0.1:8080", "nowhere");
    let flags = |listen: &str, store: &str| FlagOverrides {
        listen: Some(listen.to_owned()),
        store: Some(store.to_owned()),
    };
    let config = read_with(&flags("[::1]:1", "memory:"), &text).expect("the flags are good");
    assert_eq!(
        (config.server.listen, config.store.url),
        (vec![ListenAddress::Tcp("[::1]:1".parse().expect("an address"))], StoreUrl::Memory)
    );
    let faults = read_with(&flags("8080", "redis:secret@h"), EVERYDAY).expect_err("the flags are bad");
    assert!(faults.contains("error: --listen: `8080`") && faults.contains("error: --store: "), "{faults}");
    assert!(faults.ends_with("gateway.toml: 2 errors") && !faults.contains("secret"), "{faults}");
}

#[test]
fn a_store_has_the_defaults_of_the_file() {
    let at = |url| StoreSettings::at(url).expect("an url of a store");
    assert_eq!(at("redis://127.0.0.1:6379"), config(EVERYDAY).store);
    assert_eq!(at("memory:").url, StoreUrl::Memory);
    let fault = StoreSettings::at("redis:/me:secret@h").expect_err("it is none");
    assert!(fault.starts_with("this store URL has no scheme\n"), "{fault}");
    assert!(!fault.contains("secret"), "{fault}");
}

#[test]
fn a_file_that_cannot_be_read_is_a_fault() {
    let faults = Config::read(Path::new("no/such.toml"), &FlagOverrides::default())
        .expect_err("there is none")
        .to_string();
    assert!(faults.starts_with("error: can't read `no/such.toml`: No such file"), "{faults}");
    assert!(faults.contains("`tollgate init`") && faults.ends_with("no/such.toml: 1 error"), "{faults}");
}

#[test]
fn a_file_that_is_not_utf_8_is_told() {
    let cases = [
        (&b"[server]\n# caf\xe9\n"[..], ": line 2 has a byte that isn't UTF-8"),
        (b"\xff\xfe[\0", ": it is UTF-16, save it as UTF-8"),
    ];
    for (text, told) in cases {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text).expect("it is written");
        let faults = Config::read(file.path(), &FlagOverrides::default()).expect_err("no TOML").to_string();
        assert!(faults.contains(told), "{faults}");
    }
}

#[test]
fn rules_in_folders_within_are_read() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir_all(folder.path().join("shop/config")).expect("a folder");
    std::fs::write(folder.path().join("shop/config/shop.yaml"), "domain: shop\nnone: 1")
        .expect("it is written");
    let path = folder.path().join("gateway.toml");
    let toml = "decisions = { listen = \"127.0.0.1:1\", ratelimit_service = { config = \"shop/\" } }";
    std::fs::write(&path, toml).expect("it is written");
    let faults = Config::read(&path, &FlagOverrides::default()).expect_err("a wrong file").to_string();
    assert!(faults.contains("shop/config/shop.yaml:2:1"), "{faults}");
}

#[test]
fn a_damaged_certificate_is_not_taken_for_a_key() {
    let folder = tempfile::tempdir().expect("a folder");
    let damaged = "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n";
    std::fs::write(folder.path().join("a.pem"), damaged).expect("it is written");
    let fault = super::tls::read_certificates(&mut Sources::default(), folder.path(), "a.pem");
    assert!(fault.expect_err("it is damaged").starts_with("`a.pem` is not a valid PEM file\n"));
}
