//! Costs that routes state, and rates of keys and of patterns.

use crate::harness::{gateway::Gateway, redis::Redis};

fn statuses(gateway: &Gateway, requests: &[&str]) -> Vec<u16> {
    requests.iter().map(|request| gateway.ask(request).status).collect()
}

#[test]
fn routes_state_their_own_costs_to_one_limit() {
    let redis = Redis::start();
    for store in [String::new(), redis.store()] {
        let gateway = Gateway::start(&format!(
            "{store}[limits.budget]\nkey = \"ip\"\nrate = \"12/h\"\n\
             [[routes]]\npath = \"/search\"\nrespond = {{}}\nlimits = [{{ name = \"budget\", cost = 10 }}]\n\
             [[routes]]\npath = \"/item\"\nrespond = {{}}\nlimits = [\"budget\"]\n"
        ));
        assert_eq!(gateway.get("/search").header("ratelimit"), Some("\"budget\";r=2;t=3600"));
        // While the expensive one is refused, the cheap one fits.
        let paths = ["GET /search", "GET /item", "GET /search", "GET /item", "GET /item"];
        assert_eq!(statuses(&gateway, &paths), [429, 200, 429, 200, 429]);
    }
}

#[test]
fn a_path_that_servers_read_in_two_ways_costs_what_the_dearer_route_states() {
    let gateway = Gateway::start(
        "[limits.budget]\nkey = \"ip\"\nrate = \"12/h\"\n\
         [[routes]]\npath = \"/{*rest}\"\nrespond = {}\nlimits = [\"budget\"]\n\
         [[routes]]\npath = \"/a/b\"\nrespond = {}\nlimits = [{ name = \"budget\", cost = 10 }]\n",
    );
    assert_eq!(statuses(&gateway, &["GET /a%2Fb", "GET /a%2Fb", "GET /x"]), [200, 429, 200]);
}

#[test]
fn patterns_of_a_key_give_rates_by_their_fixed_parts() {
    let redis = Redis::start();
    let limit = "[limits.tier]\nkey = [\"header:x-plan\", \"header:x-user\"]\nplain = true\nrate = \"1/h\"\noverrides = [\n\
         { key = [\"*\", \"bob\"], rate = \"2/h\" },\n\
         { key = [\"pro\", \"*\"], rate = \"3/h\" },\n\
         { key = [\"pro\", \"alice\"], rate = \"4/h\" },\n\
         { key = '[\"free\",\"*\"]', rate = \"5/h\" },\n\
         { key = [\"pro\", \"mallory\"], rate = 0 },\n]\n";
    for store in [String::new(), redis.store()] {
        let gateway = Gateway::start(&format!(
            "{store}{limit}[[routes]]\npath = \"/\"\nrespond = {{}}\nlimits = [\"tier\"]\n"
        ));
        let admitted = |plan: &str, user: &str| {
            let request = format!("GET /\nX-Plan: {plan}\nX-User: {user}");
            (0..7).filter(|_| gateway.ask(&request).status == 200).count()
        };
        let rates = [
            ("basic", "eve", 1),
            ("basic", "bob", 2),
            ("pro", "eve", 3),
            ("pro", "bob", 3),
            ("pro", "alice", 4),
            ("free", "carol", 5),
            ("pro", "mallory", 0),
        ];
        for (plan, user, rate) in rates {
            assert_eq!(admitted(plan, user), rate, "{plan} {user}");
        }
        let blocked = gateway.ask("GET /\nX-Plan: pro\nX-User: mallory");
        assert_eq!((blocked.status, blocked.header("retry-after")), (429, None));
    }
}
