use super::*;
use crate::LoadedConfig;

fn translate(variables: &[(&str, &str)]) -> Result<RatelimitEnvironment, String> {
    let value =
        |name: &str| variables.iter().find(|(own, _)| *own == name).map(|(_, value)| (*value).to_owned());
    RatelimitEnvironment::translate(&value).map_err(|faults| faults.to_string())
}

const REDIS: [(&str, &str); 2] = [("REDIS_URL", "redis:6379"), ("REDIS_SOCKET_TYPE", "tcp")];

fn url(variables: &[(&str, &str)]) -> Result<String, String> {
    let toml = translate(variables)?.toml;
    let line = toml.lines().find_map(|line| line.strip_prefix("url = \"")).unwrap();
    Ok(line.split('"').next().unwrap().to_owned())
}

#[test]
fn defaults_are_those_of_the_reference() {
    let translated = translate(&REDIS).unwrap();
    assert!(!translated.starts_without_rules);
    insta::assert_snapshot!(translated.toml);
    let config = LoadedConfig::of_translation(&translated.without_rules()).outcome.unwrap().0;
    assert!(config.server.listen.is_empty() && config.routes.is_empty());
    assert!(config.decisions.unwrap().ratelimit.headers.is_none());
}

#[test]
fn each_variable_has_its_key() {
    let translated = translate(&[
        ("REDIS_URL", "cache"),
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_TIMEOUT", "1m30s"),
        ("CACHE_KEY_PREFIX", "shop"),
        ("HOST", "::1"),
        ("PORT", "1"),
        ("GRPC_HOST", "127.0.0.1"),
        ("GRPC_PORT", "2"),
        ("DEBUG_PORT", "3"),
        ("RUNTIME_ROOT", "/data/"),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("RUNTIME_APPDIRECTORY", "$rules"),
        ("RUNTIME_WATCH_ROOT", "false"),
        ("RUNTIME_IGNOREDOTFILES", "true"),
        ("MERGE_DOMAIN_CONFIG", "TRUE"),
        ("SHADOW_MODE", "1"),
        ("RESPONSE_DYNAMIC_METADATA", "t"),
        ("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
        ("LIMIT_RESET_HEADER", "X-Reset"),
        ("USE_PROMETHEUS", "true"),
        ("PROMETHEUS_ADDR", ":4"),
        ("LOG_LEVEL", "FATAL"),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
        ("NEAR_LIMIT_RATIO", "0.9"),
        ("TOLLGATE_REPORTED", "shop:key envoy:api_key,model"),
    ]);
    let translated = translated.unwrap();
    assert!(translated.starts_without_rules);
    insta::assert_snapshot!(translated.toml);
    assert!(
        translated.warnings.to_string().contains("no effect: NEAR_LIMIT_RATIO"),
        "{}",
        translated.warnings
    );
    LoadedConfig::of_translation(&translated.without_rules()).outcome.unwrap();
}

#[test]
fn open_ports_are_told_unless_callers_are_verified() {
    let tls = |uses_tls| {
        let files =
            [("GRPC_SERVER_TLS_CERT", "c"), ("GRPC_SERVER_TLS_KEY", "k"), ("GRPC_CLIENT_TLS_CACERT", "ca")];
        translate(&[&REDIS[..], &files, &[("GRPC_SERVER_USE_TLS", uses_tls)]].concat())
    };
    for (uses_tls, is_open) in [("true", false), ("false", true)] {
        let warnings = tls(uses_tls).unwrap().warnings.to_string();
        assert_eq!(warnings.contains("can use up limits"), is_open, "{uses_tls}: {warnings}");
    }
    let faults = tls("maybe").unwrap_err();
    assert_eq!(faults.matches("error: GRPC_SERVER_USE_TLS").count(), 1, "{faults}");
}

#[test]
fn redis_may_be_a_server_a_socket_a_cluster_or_behind_sentinels() {
    for (variables, expected) in [
        (&[("REDIS_URL", "a:1"), ("REDIS_SOCKET_TYPE", "TCP")][..], "redis://a:1"),
        (&[("REDIS_URL", "redis://a:1/2"), ("REDIS_AUTH", "p w")], "redis://:p%20w@a:1/2"),
        (&[("REDIS_URL", "redis://me:x@a"), ("REDIS_AUTH", "pw"), ("REDIS_TLS", "true")], "rediss://me:x@a"),
        (&[("REDIS_URL", "rediss://a"), ("REDIS_TLS", "true")], "rediss://a"),
        (&[("REDIS_URL", "/run/r.sock"), ("REDIS_AUTH", "me:p:w")], "redis+unix://me:p%3Aw@/run/r.sock"),
        (&[("REDIS_URL", "a:1"), ("REDIS_TYPE", "CLUSTER")], "redis-cluster://a:1"),
        (
            &[("REDIS_URL", "a:1,b:2,c:3"), ("REDIS_TYPE", "cluster"), ("REDIS_TLS", "1")],
            "rediss-cluster://a:1?node=b:2&node=c:3",
        ),
        (
            &[("REDIS_URL", "main,a:1,b:2"), ("REDIS_TYPE", "SENTINEL"), ("REDIS_SENTINEL_AUTH", "pw")],
            "redis-sentinel://a:1?service=main&node=b:2&sentinelPassword=pw",
        ),
    ] {
        let url = url(variables).unwrap();
        assert_eq!(url, expected);
        tollgate_limiter::StoreSettings::at(&url).unwrap();
    }
}

#[test]
fn wrong_values_are_told_with_their_variable() {
    let faults = translate(&[
        ("BACKEND_TYPE", "memcache"),
        ("CONFIG_TYPE", "CONSUL"),
        ("GRPC_CLIENT_TLS_SAN", "envoy"),
        ("GRPC_SERVER_USE_TLS", "true"),
        ("LOG_LEVEL", "loud"),
        ("PORT", "http"),
        ("REDIS_URL", "redis:6379"),
        ("SHADOW_MODE", "maybe"),
    ]);
    insta::assert_snapshot!(faults.unwrap_err());
    for (variables, name) in [
        (&[][..], "REDIS_URL is not set"),
        (&[("REDIS_URL", "main"), ("REDIS_TYPE", "sentinel")], "REDIS_URL names no Sentinels"),
        (&[("REDIS_URL", "a"), ("REDIS_TYPE", "ring")], "REDIS_TYPE: "),
        (&[("REDIS_URL", "a"), ("REDIS_SOCKET_TYPE", "udp")], "REDIS_SOCKET_TYPE: "),
    ] {
        let fault = translate(variables).unwrap_err();
        assert!(fault.contains(name), "{fault}");
    }
}

#[test]
fn errors_of_the_settings_name_variables_and_no_password() {
    let translated = translate(&[
        ("REDIS_URL", "a b"),
        ("REDIS_AUTH", "me:hunter2"),
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_TIMEOUT", "soon"),
        ("HOST", "everywhere"),
        ("RUNTIME_ROOT", "/no/such"),
    ]);
    let faults = LoadedConfig::of_translation(&translated.unwrap().toml).outcome.unwrap_err().to_string();
    for expected in ["# REDIS_URL", "# REDIS_TIMEOUT", "# HOST, PORT", "/no/such/config"] {
        assert!(faults.contains(expected), "{faults}");
    }
    assert!(!faults.contains("hunter2"), "{faults}");
}
