//! A guard against guessed passwords: failed logins count, successful ones don't.
//!
//! Five wrong passwords per account in 15 minutes, and 50 per address in an hour. A login first looks whether there is room,
//! which takes nothing, and records a permit once the password was wrong. It has no async runtime.
//!
//! ```text
//! cargo run -p tollgate-limiter --example login_guard
//! TOLLGATE_STORE=redis://127.0.0.1:6379 cargo run -p tollgate-limiter --features redis --example login_guard
//! ```

#![allow(clippy::print_stdout, reason = "the example prints")]

use std::{env, error::Error, net::IpAddr, sync::Arc, time::Duration};

use tollgate_limiter::{Ask, BlockingLimiter, Key, Limit, Rate};

fn main() -> Result<(), Box<dyn Error>> {
    let store = env::var("TOLLGATE_STORE").unwrap_or_else(|_| "memory:".to_owned());
    let guard = LoginGuard::new(BlockingLimiter::connect(&store)?)?;
    let address = [192, 0, 2, 7].into();
    for guess in ["123456", "password", "qwertz", "letmein", "dragon", "correct horse"] {
        match guard.login("alice", address, || guess == "correct horse") {
            Login::Welcome => println!("{guess}: welcome"),
            Login::Wrong { guesses_left } => println!("{guess}: wrong, {guesses_left} guesses left"),
            Login::Blocked { retry_after } => {
                println!("{guess}: not even looked at, retry in {retry_after:?}");
            }
        }
    }
    println!("{} wrong passwords count for alice", guard.used("alice"));
    guard.forgive("alice")?;
    assert_eq!(guard.login("alice", address, || true), Login::Welcome);
    Ok(())
}

/// The result of a login.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Login {
    Welcome,
    Wrong { guesses_left: u64 },
    Blocked { retry_after: Option<Duration> },
}

/// Counts wrong passwords.
pub(crate) struct LoginGuard {
    limiter: BlockingLimiter,
    by_account: Arc<Limit>,
    by_address: Arc<Limit>,
}

impl LoginGuard {
    pub(crate) fn new(limiter: BlockingLimiter) -> Result<Self, String> {
        let limit = |name, rate: &str| rate.parse::<Rate>().map(|rate| Arc::new(Limit::new(name, rate)));
        let (by_account, by_address) =
            (limit("wrong-by-account", "5/15min")?, limit("wrong-by-address", "50/h")?);
        Ok(Self { limiter, by_account, by_address })
    }

    /// Looks at the password, unless too many were wrong.
    pub(crate) fn login(&self, account: &str, address: IpAddr, is_right: impl FnOnce() -> bool) -> Login {
        let asks = [
            Ask::new(&self.by_account, account).cost(0).settled_later(1),
            Ask::new(&self.by_address, Key::address(address)).cost(0).settled_later(1),
        ];
        let admission = match self.limiter.try_acquire(&asks) {
            Ok(admission) => admission,
            Err(refusal) => return Login::Blocked { retry_after: refusal.retry_after() },
        };
        if is_right() {
            return Login::Welcome;
        }
        for limit in [&self.by_account, &self.by_address] {
            admission.record(limit.name(), 1);
        }
        Login::Wrong { guesses_left: admission.remaining().unwrap_or(0).saturating_sub(1) }
    }

    /// Returns the number of wrong passwords that count for an account.
    pub(crate) fn used(&self, account: &str) -> u64 {
        self.limiter.peek(&Ask::new(&self.by_account, account)).map_or(0, |state| state.used())
    }

    /// Forgets the wrong passwords of an account, as when its owner has set another one.
    pub(crate) fn forgive(&self, account: &str) -> Result<(), Box<dyn Error>> {
        Ok(self.limiter.reset(&Ask::new(&self.by_account, account))?)
    }
}
