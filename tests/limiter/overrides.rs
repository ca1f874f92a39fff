//! Large numbers of rates set at run time.

#![allow(clippy::print_stdout, reason = "the figures are for whoever runs the test with --nocapture")]

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};
use tollgate_limiter::{Key, Limit, Limiter, Override, Rate, SetWhen};

use crate::{
    harness::redis::Redis,
    limiter::{block_on, limit, patient},
};

/// Sets rates of keys `0` to `ARGV[1] - 1`, as gateways do.
const FILL: &str = "for key = 0, ARGV[1] - 1 do \
     redis.call('HSET', KEYS[1], 'l caller=' .. key, '5 1000000 - 0') end \
     redis.call('HSET', KEYS[1], '#version', '77')";

fn rate(permits: u32) -> Override {
    Override { rate: Rate { permits, window_us: 1_000_000 }, scope: None, lasts: None }
}

fn key(number: u32) -> Key {
    Key::caller(&number.to_string())
}

/// Waits until a limiter knows a key's rate.
async fn knows(limiter: &Limiter, limit: &Limit, key: &Key, permits: u32) {
    let since = Instant::now();
    while limiter.quota(limit, Some(key)).permits != permits {
        assert!(since.elapsed() < Duration::from_secs(10), "it isn't told");
        sleep(Duration::from_millis(1)).await;
    }
}

/// Microseconds that Redis has been busy with commands.
fn busy_us(redis: &Redis) -> u64 {
    let stats = redis.connect().command(&["INFO", "commandstats"]);
    let busy = stats.text().lines().filter_map(|line| {
        let of_command = line.split_once(",usec=")?.1.split(',').next()?.parse::<u64>().ok()?;
        // Its own time is in that of the script that calls it.
        ["evalsha", "eval", "hget", "hgetall", "time"]
            .iter()
            .any(|name| line.starts_with(&format!("cmdstat_{name}:")))
            .then_some(of_command)
    });
    busy.sum()
}

/// Of three gateways each changes a rate in turn.
#[test]
fn a_change_costs_the_store_less_than_to_read_all_rates() {
    block_on(cost_of_changes());
}

async fn cost_of_changes() {
    const CHANGES: u32 = 20;
    let redis = Redis::start();
    redis.command(&["EVAL", FILL, "1", "tollgate:overrides", "10000"]);
    let limit = limit("l", "3/1s");
    let gateways: Vec<Arc<Limiter>> = (0..3).map(|_| patient(&redis.url())).collect();
    for gateway in &gateways {
        knows(gateway, &limit, &key(0), 5).await;
    }
    redis.command(&["CONFIG", "RESETSTAT"]);
    for change in 0..CHANGES {
        let (setter, key) = (&gateways[change as usize % 3], key(change % 5));
        setter.set_override(&limit, Some(&key), &rate(100 + change), SetWhen::Always).await.unwrap();
        assert_eq!(setter.quota(&limit, Some(&key)).permits, 100 + change);
        for gateway in &gateways {
            knows(gateway, &limit, &key, 100 + change).await;
        }
    }
    assert!(gateways[0].unset_override(&limit, Some(&key(7))).await.unwrap());
    for gateway in &gateways {
        knows(gateway, &limit, &key(7), 3).await;
    }
    assert!(!gateways[1].unset_override(&limit, Some(&key(7))).await.unwrap());
    let changing_us = busy_us(&redis);
    redis.command(&["CONFIG", "RESETSTAT"]);
    let mut connection = redis.connect();
    for _ in 0..CHANGES {
        connection.command(&["HGETALL", "tollgate:overrides"]);
    }
    let reading_us = busy_us(&redis);
    assert!(changing_us < reading_us, "{changing_us} µs to change, and {reading_us} µs to read all");
}

/// Changes that two gateways make at the same time reach all in one order.
#[test]
fn changes_at_the_same_time_reach_all_gateways() {
    let redis = Redis::start();
    block_on(async {
        let limit = limit("l", "3/1s");
        let gateways: Vec<Arc<Limiter>> = (0..3).map(|_| patient(&redis.url())).collect();
        for gateway in &gateways {
            gateway.warm_up().await.unwrap();
        }
        let setting = gateways.iter().enumerate().map(async |(gateway, limiter)| {
            for change in 0..50 {
                let permits = 10 + 100 * gateway as u32 + change;
                let key = key(change % 4);
                limiter.set_override(&limit, Some(&key), &rate(permits), SetWhen::Always).await.unwrap();
            }
        });
        futures_util::future::join_all(setting).await;
        let all = gateways[0].overrides().await.unwrap();
        assert_eq!(all.len(), 4);
        for (field, set) in all {
            let key = key(field.rsplit_once('=').unwrap().1.parse().unwrap());
            for gateway in &gateways {
                knows(gateway, &limit, &key, set.rate.permits).await;
            }
        }
    });
}
