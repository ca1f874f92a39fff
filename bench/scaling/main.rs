//! How cost grows: many gateways, many keys and one Redis, in virtual time. `cargo bench --bench scaling -- --help`;
//! docs/scaling.md says what follows from it.
//!
//! Requests come by a Poisson process to gateways at random, with keys by Zipf's law. The gateways do what those of this
//! project do: they refuse what they know to be full, gather requests while a call is in flight, keep the store's deadline, and
//! fall back when the breaker is open. The limiter's own algorithm decides. Redis is one server with a queue, and its time for
//! a call is a figure that bench/growth.py measures. The gateways' own CPU time isn't modelled: they are always quick enough.

#![allow(clippy::print_stdout, reason = "people wait for it")]

mod counts;
mod known;
mod model;
mod sampling;
mod server;
mod tally;

use clap::{Parser, ValueEnum};
use tollgate_limiter::Rate;

use model::Model;
use tally::{Phase, Tally};

/// Simulates gateways that share limits over one Redis, in virtual time: what the store costs, and what is admitted
#[derive(Debug, Parser)]
pub(crate) struct Parameters {
    /// Gateways; several numbers, with commas, are run one after the other
    #[arg(long, default_value = "1000", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    gateways: Vec<u32>,
    /// Workers of a gateway, each with its own connection to Redis
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=256))]
    workers: u32,
    /// Requests per second, of all gateways together
    #[arg(long, default_value_t = 50_000.0)]
    requests: f64,
    /// Keys that requests have
    #[arg(long, default_value_t = 10_000_000, value_parser = clap::value_parser!(u32).range(1..))]
    keys: u32,
    /// The key of rank k is asked in proportion to k^-skew; 0 for all alike
    #[arg(long, default_value_t = 1.1)]
    skew: f64,
    /// The limit of each key, as an exact sliding window
    #[arg(long, default_value = "100/10s")]
    rate: Rate,
    /// Seconds to simulate, after a first window
    #[arg(long, default_value_t = 20.0)]
    seconds: f64,
    /// Seconds for which the store is silent in the second run; 0 for no such run
    #[arg(long, default_value_t = 3.0)]
    failure: f64,
    /// The fallback of gateways without the store
    #[arg(long, default_value = "local")]
    on_failure: Fallback,
    /// Gateways among which the fallback divides the quota [default: as many as there are]
    #[arg(long)]
    instances: Option<u32>,
    /// `store.timeout`
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
    timeout_ms: u64,
    /// The way to Redis and back
    #[arg(long, default_value_t = 300.0)]
    round_trip_us: f64,
    /// Redis's CPU time for a call
    #[arg(long, default_value_t = 22.0)]
    call_us: f64,
    /// Redis's further time for each bucket of a call
    #[arg(long, default_value_t = 4.0)]
    bucket_us: f64,
    /// Redis's further time for each request of a call that is equal to another one
    #[arg(long, default_value_t = 0.01)]
    equal_us: f64,
    /// Seed of the random numbers: the same one gives the same run
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// An option that Cargo passes to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Fallback {
    Local,
    Deny,
    Allow,
}

impl Parameters {
    fn begin_ns(&self) -> u64 {
        self.rate.window_us * 1_000
    }

    fn end_ns(&self) -> u64 {
        self.begin_ns() + (self.seconds * 1e9) as u64
    }

    /// Returns the time of the failure, in the middle of the run.
    fn failure_ns(&self) -> (u64, u64) {
        let from = self.begin_ns() + ((self.seconds - self.failure).max(0.0) / 2.0 * 1e9) as u64;
        (from, from + (self.failure * 1e9) as u64)
    }
}

fn main() {
    let parameters = Parameters::parse();
    let Parameters { requests, keys, skew, rate, workers, seed, .. } = &parameters;
    println!(
        "{requests} requests/s, {keys} keys with skew {skew}, {rate} for each, {workers} workers a gateway, seed {seed}"
    );
    println!(
        "\n| gateways | phase | requests/s | refused locally | calls/s | calls a request | Redis busy | p50 ms | p99 ms | without the store | of ideal |"
    );
    println!("|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    let mut remarks = Vec::new();
    for gateways in &parameters.gateways {
        let healthy = Model::new(&parameters, *gateways, (u64::MAX, u64::MAX)).run();
        print_phase(*gateways, "healthy", &healthy.phases[0]);
        remarks.push(remark(*gateways, "healthy", &healthy));
        if parameters.failure > 0.0 {
            let failing = Model::new(&parameters, *gateways, parameters.failure_ns()).run();
            for (name, phase) in ["before", "failure", "after"].iter().zip(&failing.phases) {
                print_phase(*gateways, name, phase);
            }
            let (closed_ms, last_ms) = failing.recovery_ms();
            let remark = remark(*gateways, "with a failure", &failing);
            remarks.push(format!(
                "{remark}; {} breakers opened, the last one closed {closed_ms:.0} ms after the failure, and the last decision \
                 without the store was {last_ms:.0} ms after it",
                failing.openings
            ));
        }
    }
    println!();
    remarks.iter().for_each(|remark| println!("- {remark}"));
}

fn print_phase(gateways: u32, name: &str, phase: &Phase) {
    let share = |part: u64, of: u64| 100.0 * part as f64 / of.max(1) as f64;
    let Phase { seconds, requests, ideal, admitted, refused_locally, without_store, calls, busy_ns, added } =
        phase;
    println!(
        "| {gateways} | {name} | {:.0} | {:.1} % | {:.0} | {:.3} | {:.1} % | {:.2} | {:.2} | {:.2} % | {:.2} % |",
        *requests as f64 / seconds,
        share(*refused_locally, *requests),
        *calls as f64 / seconds,
        *calls as f64 / (*requests).max(1) as f64,
        *busy_ns as f64 / seconds / 1e7,
        added.quantile_ms(0.5),
        added.quantile_ms(0.99),
        share(*without_store, *requests),
        share(*admitted, *ideal),
    );
}

fn remark(gateways: u32, run: &str, tally: &Tally) -> String {
    let Tally { most_over, without_store, .. } = tally;
    format!(
        "{gateways} gateways, {run}: at most {most_over} permits beyond L passed in any window, with {without_store} decisions \
         without the store"
    )
}
