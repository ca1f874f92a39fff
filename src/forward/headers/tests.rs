use super::*;

fn map(lines: &[(&'static str, &'static str)]) -> HeaderMap {
    let lines = lines.iter();
    lines.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
}

/// The id of the request.
fn id() -> HeaderValue {
    HeaderValue::from_static("own")
}

fn client(peer_is_trusted: bool) -> Client {
    let peer = IpAddr::from([192, 0, 2, 7]);
    Client { peer, peer_is_trusted, address: peer, scheme: "http" }
}

#[test]
fn hop_by_hop_fields_are_removed() {
    let mut headers = map(&[
        ("connection", "close, X-Private, X-Forwarded-For, X-Kept"),
        ("connection", "x-other,,  bad name"),
        ("x-private", "1"),
        ("x-other", "2"),
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "keep-alive"),
        ("proxy-authorization", "Basic eA=="),
        ("transfer-encoding", "chunked"),
        ("upgrade", "h2c"),
        ("x-kept", "3"),
        ("x-forwarded-for", "192.0.2.7"),
    ]);
    remove_hop_by_hop(&mut headers, |_| false, &[HeaderName::from_static("x-kept")]);
    assert_eq!(headers, map(&[("x-kept", "3"), ("x-forwarded-for", "192.0.2.7")]));
}

#[test]
fn fields_that_cgi_confuses_with_others_are_dropped() {
    let mut headers =
        map(&[("php-auth-user", "a"), ("php-auth-digest", "b"), ("php-auth", "3"), ("cookie2", "sid=k1")]);
    headers.extend(map(&[("cgi-authorization", "a"), ("xauthorization", "b"), ("referrer", "c")]));
    from_client(&mut headers, &[]);
    assert_eq!(headers, map(&[("php-auth", "3")]));
    for mark in "_.!#$%&'*+^`|~".chars() {
        let mut headers = map(&[("x-kept3", "3")]);
        let name = HeaderName::try_from(format!("x{mark}forwarded{mark}for")).unwrap();
        headers.insert(&name, HeaderValue::from_static("10.0.0.1"));
        from_client(&mut headers, &[]);
        assert_eq!(headers, map(&[("x-kept3", "3")]), "{name}");
    }
}

#[test]
fn fields_of_a_described_request_become_lines_of_those_that_servers_take_them_for() {
    for name in ["x_api_key", "x-api.key", "x-api-key-", "x-api_key--"] {
        let mut headers = map(&[("x-api-key", "k1"), (name, "k2")]);
        from_described(&mut headers);
        assert_eq!(headers, map(&[("x-api-key", "k1"), ("x-api-key", "k2")]), "{name}");
    }
    let mut headers = map(&[("cookie", "a=1"), ("cookie2", "sid=k1")]);
    from_described(&mut headers);
    assert_eq!(headers, map(&[("cookie", "a=1"), ("cookie", "sid=k1")]));
    let mut headers = map(&[("referrer", "k1")]);
    from_described(&mut headers);
    assert_eq!(headers, map(&[("referer", "k1")]));
    for name in [
        "php-auth-user",
        "php_auth_user",
        "php-auth_digest",
        "cgi-authorization",
        "xauthorization",
        "cgi_authorization",
    ] {
        let mut headers = map(&[("-", "k1"), (name, "k2")]);
        from_described(&mut headers);
        assert_eq!(headers, map(&[("-", "k1"), ("authorization", "k2"), ("authorization", "")]), "{name}");
    }
}

#[test]
fn space_around_values_is_removed() {
    let sent = [("x-api-key", " \tk1\t "), ("x-api-key", "k1"), ("x-blank", " "), ("x-inner", "a \tb")];
    let read = map(&[("x-api-key", "k1"), ("x-api-key", "k1"), ("x-blank", ""), ("x-inner", "a \tb")]);
    let mut headers = map(&sent);
    from_http2(&mut headers);
    assert_eq!(headers, read);
}

#[test]
fn client_fields_of_an_untrusted_peer_are_replaced() {
    let claims = [
        ("host", "api.example.com"),
        ("x-forwarded-for", "10.0.0.1"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "evil.example"),
        ("x-forwarded-prefix", "/admin"),
        ("forwarded", "for=10.0.0.1"),
        ("x-real-ip", "10.0.0.1"),
        ("x-request-id", "mine"),
    ];
    let mut headers = map(&claims);
    towards_upstream(&mut headers, &client(false), Version::HTTP_11, id());
    assert_eq!(headers["x-forwarded-for"], "192.0.2.7");
    assert_eq!(headers["x-forwarded-proto"], "http");
    assert_eq!(headers["x-forwarded-host"], "api.example.com");
    assert_eq!(headers["x-request-id"], "own");
    assert_eq!(
        headers
            .keys()
            .filter(|name| name.as_str().contains("real") || name.as_str().contains("prefix"))
            .count(),
        0
    );
    assert!(!headers.contains_key("forwarded"));

    let mut headers = map(&claims);
    towards_upstream(&mut headers, &client(true), Version::HTTP_11, id());
    assert_eq!(headers["x-forwarded-for"], "10.0.0.1, 192.0.2.7");
    assert_eq!(headers["x-forwarded-proto"], "https");
    assert_eq!(headers["x-forwarded-host"], "evil.example");
    assert_eq!(headers["x-request-id"], "own");
}

#[test]
fn a_request_id_is_kept_if_it_is_safe_and_alone() {
    let is_kept = |lines: &[&str]| {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(X_REQUEST_ID, HeaderValue::from_str(line).unwrap());
        }
        request_id(&headers).map(|id| id.to_str().unwrap().to_owned()) == Some(lines.concat())
    };
    let longest = "x".repeat(128);
    for valid in ["a", "6ba7b810-9dad-11d1", "Root=1-67891233:abc/d+e=@~._", &longest] {
        assert!(is_kept(&[valid]), "{valid:?}");
    }
    let too_long = "x".repeat(129);
    for invalid in [&[][..], &[""], &["a b"], &["a\"b"], &["a\tb"], &["\u{e9}"], &[&too_long], &["a", "a"]] {
        assert!(!is_kept(invalid), "{invalid:?}");
    }
    assert_eq!(new_request_id().len(), 32);
}

#[test]
fn trailers_that_belong_into_the_head_are_removed() {
    let sent = [
        ("x-sum", "7"),
        ("connection", "x-private"),
        ("x-private", "1"),
        ("content-length", "0"),
        ("transfer-encoding", "chunked"),
        ("host", "evil.example"),
        ("authorization", "Basic eA=="),
        ("x-forwarded-for", "10.0.0.1"),
        ("forwarded", "for=10.0.0.1"),
        ("x_sum", "8"),
        ("grpc-status", "0"),
    ];
    let mut trailers = map(&sent);
    trailers_from_client(&mut trailers);
    assert_eq!(trailers, map(&[("x-sum", "7"), ("grpc-status", "0")]));
    let mut trailers = map(&[sent[0], sent[1], sent[2], sent[3], sent[4], sent[9], ("set-cookie", "a=b")]);
    trailers_towards_client(&mut trailers);
    assert_eq!(trailers, map(&[("x-sum", "7"), ("x_sum", "8")]));
}

#[test]
fn trailers_of_which_one_has_ff_are_removed() {
    for (value, kept) in [(&b"\xFE"[..], 2), (b"a\xFFb", 0)] {
        let mut trailers = map(&[("x-sum", "7")]);
        trailers.insert("x-other", HeaderValue::from_bytes(value).unwrap());
        trailers_from_client(&mut trailers);
        assert_eq!(trailers.len(), kept);
    }
}

#[test]
fn via_is_set_and_te_keeps_only_trailers() {
    let mut headers = map(&[("via", "1.0 a"), ("te", "gzip, Trailers"), ("expect", "100-continue")]);
    towards_upstream(&mut headers, &client(false), Version::HTTP_10, id());
    assert_eq!(headers["via"], "1.0 a, 1.0 tollgate");
    assert_eq!(headers["te"], "trailers");
    assert!(!headers.contains_key("expect"));
    let mut headers = map(&[("te", "gzip")]);
    towards_upstream(&mut headers, &client(false), Version::HTTP_11, id());
    assert!(!headers.contains_key("te"));
}

#[test]
fn one_length_is_forwarded() {
    let forwarded = |lines: &[&'static str]| {
        let mut headers: HeaderMap =
            lines.iter().map(|line| (CONTENT_LENGTH, HeaderValue::from_static(line))).collect();
        towards_client(&mut headers);
        headers
            .get_all(CONTENT_LENGTH)
            .into_iter()
            .map(|line| line.to_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    for same in [&["5"][..], &["5", "5"], &["5, 5"], &["5,5", "5"], &["05"], &["5, 005"]] {
        assert_eq!(forwarded(same), ["5"]);
    }
    for other in [&["5", "6"][..], &["5, 6"], &["+5"], &["5;"], &[""], &["0x5"], &["5 5"]] {
        assert_eq!(forwarded(other), [""; 0]);
    }
}

#[test]
fn transfer_encoding_takes_precedence_over_content_length() {
    let mut headers = map(&[("transfer-encoding", "chunked"), ("content-length", "5")]);
    towards_client(&mut headers);
    assert!(headers.is_empty());
}

#[test]
fn metadata_of_grpc_that_is_no_base64_is_found() {
    let has_invalid =
        |name: &'static str, value: &'static str| has_invalid_metadata(&map(&[("x-k", "!"), (name, value)]));
    for value in ["!!!", "a", "YQ==x", "YQ==,!", "YQ Q", "a_b-", "=a"] {
        assert!(has_invalid("x-k-bin", value), "{value}");
        assert!(!has_invalid("x-bin-k", value));
    }
    for value in ["", "YQ", "YQ=", "YQ==", "YWI=", "YQ==,YWJj", "YQ, YQ ,YQ", "+/+/"] {
        assert!(!has_invalid("x-k-bin", value), "{value}");
    }
}
