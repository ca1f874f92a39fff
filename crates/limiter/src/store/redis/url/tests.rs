use super::*;

fn at(host: &str, port: u16) -> Endpoint {
    Endpoint { host: host.to_owned(), port }
}

fn parse(text: &str) -> RedisUrl {
    RedisUrl::parse(text).unwrap_or_else(|fault| panic!("{text}: {fault}"))
}

#[test]
fn urls_are_taken_apart() {
    let url = parse("rediss://me:p%40ss@cache/3");
    assert!(url.tls && url.servers == RedisServers::One(at("cache", 6379)) && url.database == Some(3));
    assert_eq!((url.login.user.as_deref(), url.login.password.as_deref()), (Some("me"), Some("p@ss")));
    assert_eq!(url.to_string(), "rediss://me:******@cache/3");

    let url = parse("redis-sentinel://me:p:'w\"`d@a?service=main&sentinelPassword=q'w\"e");
    assert_eq!(url.to_string(), "redis-sentinel://me:*******@a?service=main&sentinelPassword=*****");

    let url = parse("redis-cluster://:pw@a:7001?node=b:7002&node=[::1]:7003");
    assert!(!url.tls && url.login.user.is_none());
    let nodes = vec![at("a", 7001), at("b", 7002), at("::1", 7003)];
    assert!(url.servers == RedisServers::Cluster(nodes));

    let url = parse("rediss-sentinel://me:pw@a/2?node=b:5&service=main&sentinelPassword=hunter2");
    assert_eq!((url.tls, url.database), (true, Some(2)));
    let RedisServers::Sentinel { sentinels, service, login } = &url.servers else { panic!("{url}") };
    assert_eq!((sentinels.as_slice(), service.as_str()), (&[at("a", 26379), at("b", 5)][..], "main"));
    assert_eq!((login.user.as_deref(), login.password.as_deref()), (None, Some("hunter2")));
    assert!(!format!("{url:?}").contains("hunter2"));
    assert!(parse("redis-sentinel://a?sentinelServiceName=main").servers != url.servers);

    assert_eq!(parse("redis://h/0").database, None);
    assert_eq!(parse("redis+unix:///a?db=0").database, None);
    let url = parse("redis+unix://me:pw@localhost/run/my%20redis.sock?db=4");
    assert!(url.servers == RedisServers::Socket("/run/my redis.sock".into()));
    assert_eq!((url.database, url.login.password.as_deref()), (Some(4), Some("pw")));
}

#[test]
fn what_is_no_url_is_refused() {
    for text in [
        "redis:",
        "redis://",
        "redis:/u:p@h",
        "redis://h:x",
        "redis://h:0",
        "redis://h:99999",
        "redis://h/a",
        "redis://h/256",
        "redis://h/0/1",
        "redis://h#1",
        "redis://a b",
        "redis://a[::1]",
        "redis://[::x]:1",
        "redis://:p%ff@h",
        "redis://h?node=b:1",
        "redisss://h",
        "redis-cluster://h/1",
        "redis-cluster://h?service=a",
        "redis-cluster://h?node=",
        "redis-cluster://h?node=b:x",
        "redis-sentinel://h",
        "redis-sentinel://h?service=",
        "redis-sentinel://h?service=a&service=b",
        "redis+unix://",
        "redis+unix:///",
        "redis+unix://run/redis.sock",
        "redis+unix:///a?db=x",
        "rediss+unix:///a",
        "redis+cluster://h",
    ] {
        let fault = RedisUrl::parse(text).map(|url| url.to_string()).expect_err(text);
        assert!(fault.lines().count() == 2, "{text}: {fault}");
    }
}
