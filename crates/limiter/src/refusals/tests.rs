//! Blocks against the in-process store, both at the instants of a paused clock.

use std::time::Duration;

use futures_util::FutureExt;
use proptest::{collection, prelude::*};
use smallvec::smallvec;
use tokio::{
    runtime::Builder,
    time::{self, advance, timeout},
};

use super::*;
use crate::{
    algorithm::Rate,
    store::{Act, Decision, Operation, Reply, memory::MemoryStore},
};

const START_US: u64 = 1_763_683_200_000_000;

fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

/// Runs on a clock that the test moves.
fn in_virtual_time<T>(test: impl Future<Output = T>) -> T {
    Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(test)
}

fn charge(cost: u32, permits: u32, window_us: u64, algorithm: Algorithm) -> Charge {
    let quota = Quota::new(algorithm, Rate { permits, window_us });
    Charge { bucket: "b".into(), quota, cost, shadow: false }
}

/// A store whose clock runs a little faster or slower than the gateway's.
struct Shop {
    store: MemoryStore,
    opened: Instant,
    per_mille: f64,
}

impl Shop {
    fn new(per_mille: f64) -> Self {
        Self { store: MemoryStore::new(1 << 30), opened: Instant::now(), per_mille }
    }

    fn time_us(&self) -> u64 {
        START_US + (self.opened.elapsed().as_micros() as f64 * (1.0 + self.per_mille / 1_000.0)) as u64
    }

    fn take(&self, charge: &Charge) -> Decision {
        match self.store.operate_at(self.time_us(), &Operation::Take(smallvec![charge.clone()])).unwrap() {
            Reply::Decision(decision) => decision,
            reply => panic!("{reply:?}"),
        }
    }

    /// Until it would admit a charge.
    fn delay_us(&self, charge: &Charge) -> u64 {
        let act = Act::Peek(charge.cost);
        let operation = Operation::On { bucket: charge.bucket.clone(), quota: charge.quota, act };
        match self.store.operate_at(self.time_us(), &operation).unwrap() {
            Reply::Usage(usage) => usage.delay_us.unwrap(),
            reply => panic!("{reply:?}"),
        }
    }
}

/// Takes as a limiter does; the call is so long under way there and back.
async fn take(refusals: &Refusals, shop: &Shop, charge: &Charge, trip_us: u64) -> Result<Decision, Outcome> {
    let deadline = Instant::now() + Duration::from_secs(60);
    let _turns =
        match refusals.check(|| [(charge, Costs::Vary)].into_iter(), Instant::now(), deadline, || true).await
        {
            KnownAnswer::Refused(outcomes) => return Err(outcomes[0].unwrap()),
            KnownAnswer::Ask(turns) => turns,
        };
    let sent = refusals.sending();
    advance(us(trip_us)).await;
    let decision = shop.take(charge);
    advance(us(trip_us)).await;
    refusals.learn(charge, &decision.outcomes[0], sent, true);
    Ok(decision)
}

fn algorithms() -> impl Strategy<Value = Algorithm> {
    prop_oneof![
        Just(Algorithm::SlidingWindow),
        Just(Algorithm::SlidingCells { cells: 10 }),
        Just(Algorithm::FixedWindow),
        (1..10_u32).prop_map(|burst| Algorithm::Gcra { burst: Some(burst) }),
    ]
}

proptest! {
    /// Some callers with costs of their own, one after the other; clocks that run apart by less than 0.1 %.
    #[test]
    fn none_is_refused_that_the_store_would_admit_and_none_is_told_too_little(
        algorithm in algorithms(),
        permits in 1..10_u32,
        window_us in (20..9_000_u64).prop_map(|ms| ms * 1_000),
        per_mille in -0.9..0.9,
        steps in collection::vec((1..12_u32, 0..1_000_u64, 0..3_000_u64), 1..120),
    ) {
        in_virtual_time(async {
            let (refusals, shop) = (Refusals::default(), Shop::new(per_mille));
            for (cost, pause, trip_us) in steps {
                advance(us(pause * pause * window_us / 3_000_000)).await;
                let charge = charge(cost, permits, window_us, algorithm);
                if cost > charge.quota.capacity() {
                    continue;
                }
                if let Err(outcome) = take(&refusals, &shop, &charge, trip_us).await {
                    prop_assert!(shop.delay_us(&charge) > 0, "{cost} would have been admitted");
                    let (told, takes) = (outcome.delay_us.unwrap(), shop.delay_us(&charge));
                    // By so much may the store's clock have fallen behind since it told.
                    let longest_us = window_us * u64::from(charge.quota.capacity().max(permits) / permits + 1);
                    let apart_us = longest_us / 1_000 + 1;
                    prop_assert!(told + apart_us >= takes, "told {told} and it takes {takes}");
                }
            }
            Ok(())
        })?;
    }
}

#[test]
fn a_cost_is_told_its_own_delay_and_shrinks_with_time() {
    in_virtual_time(async {
        let (refusals, shop) = (Refusals::default(), Shop::new(0.0));
        let ask = |cost| charge(cost, 5, 1_000_000, Algorithm::SlidingWindow);
        for _ in 0..5 {
            assert!(take(&refusals, &shop, &ask(1), 0).await.unwrap().admitted);
            advance(us(100_000)).await;
        }
        for cost in [2, 5] {
            assert!(!take(&refusals, &shop, &ask(cost), 0).await.unwrap().admitted, "it asks once");
        }
        advance(us(50_000)).await;
        for (cost, told) in [(1, 450_000), (2, 550_000), (5, 850_000)] {
            let refused = take(&refusals, &shop, &ask(cost), 0).await.unwrap_err();
            assert_eq!(refused.delay_us, Some(told + 1), "{cost}");
        }
        assert!(!take(&refusals, &shop, &ask(3), 0).await.unwrap().admitted, "of this none was remembered");
        assert!(take(&refusals, &shop, &ask(3), 0).await.is_err());
    });
}

#[test]
fn many_costs_are_told_the_next_greater_ones_delay() {
    in_virtual_time(async {
        let (refusals, shop) = (Refusals::default(), Shop::new(0.0));
        let ask = |cost| charge(cost, 1_000, 1_000_000, Algorithm::SlidingWindow);
        assert!(take(&refusals, &shop, &ask(1_000), 0).await.unwrap().admitted);
        let mut asked = 0;
        for cost in (1..=1_000).rev() {
            asked += usize::from(take(&refusals, &shop, &ask(cost), 0).await.is_ok());
        }
        assert!(asked <= block::STEPS_MOST, "{asked}");
    });
}

/// A block of a cost of 1, just noted: the last room has been taken.
async fn block(refusals: &Refusals, shop: &Shop, ask: &Charge) {
    take(refusals, shop, ask, 0).await.unwrap();
    assert!(take(refusals, shop, ask, 0).await.is_err());
}

#[test]
fn fault_14_a_block_ends_before_there_is_room() {
    in_virtual_time(async {
        let (refusals, shop) = (Refusals::default(), Shop::new(0.0));
        let ask = charge(1, 1, 1_000_000, Algorithm::SlidingWindow);
        block(&refusals, &shop, &ask).await;
        advance(us(998_999)).await;
        assert!(take(&refusals, &shop, &ask, 0).await.is_err());
        advance(us(2)).await;
        assert!(!take(&refusals, &shop, &ask, 0).await.unwrap().admitted, "it asks");
    });
}

#[test]
fn fault_14_a_reset_and_a_change_end_a_block() {
    in_virtual_time(async {
        let (refusals, shop) = (Refusals::default(), Shop::new(0.0));
        let ask = charge(1, 1, 1_000_000, Algorithm::SlidingWindow);
        block(&refusals, &shop, &ask).await;
        refusals.forget(&ask.bucket);
        block(&refusals, &shop, &ask).await;
        refusals.forget_all();
        assert_eq!(refusals.blocks.load(Relaxed), 0);
        block(&refusals, &shop, &ask).await;
        let raised = charge(1, 3, 1_000_000, Algorithm::SlidingWindow);
        assert!(take(&refusals, &shop, &raised, 0).await.unwrap().admitted);
        assert_eq!(refusals.blocks.load(Relaxed), 0);
    });
}

#[test]
fn fault_14_a_refusal_whose_call_was_sent_before_a_reset_is_not_kept() {
    in_virtual_time(async {
        let (refusals, shop) = (Refusals::default(), Shop::new(0.0));
        let ask = charge(1, 1, 1_000_000, Algorithm::SlidingWindow);
        assert!(shop.take(&ask).admitted);
        let sent = refusals.sending();
        let refused = shop.take(&ask);
        refusals.forget(&ask.bucket);
        refusals.note(&ask, &refused.outcomes[0], sent);
        assert!(take(&refusals, &shop, &ask, 0).await.is_ok(), "it asks");
    });
}

#[test]
fn what_was_changed_elsewhere_is_noticed_after_5_s_by_one_request() {
    in_virtual_time(async {
        let (refusals, shop) = (Refusals::default(), Shop::new(0.0));
        let ask = charge(1, 3, 3_600_000_000, Algorithm::SlidingWindow);
        for _ in 0..2 {
            shop.take(&ask);
        }
        block(&refusals, &shop, &ask).await;
        advance(us(4_999_999)).await;
        assert!(take(&refusals, &shop, &ask, 0).await.is_err());
        advance(us(1)).await;
        let deadline = Instant::now() + Duration::from_secs(1);
        let turns =
            refusals.check(|| [(&ask, Costs::Vary)].into_iter(), Instant::now(), deadline, || true).await;
        assert!(matches!(turns, KnownAnswer::Ask(_)));
        // The others are refused until it has its answer.
        assert!(take(&refusals, &shop, &ask, 0).await.is_err());
        drop(turns);
        shop.store
            .operate_at(
                shop.time_us(),
                &Operation::On { bucket: ask.bucket.clone(), quota: ask.quota, act: Act::Reset },
            )
            .unwrap();
        for _ in 0..3 {
            assert!(take(&refusals, &shop, &ask, 0).await.unwrap().admitted);
        }
    });
}

#[test]
fn an_answer_that_comes_late_is_no_news_after_a_later_one() {
    in_virtual_time(async {
        let (refusals, shop) = (Refusals::default(), Shop::new(0.0));
        let ask = charge(1, 2, 1_000_000, Algorithm::SlidingWindow);
        let sent = refusals.sending();
        let [first, last] = [shop.take(&ask), shop.take(&ask)];
        advance(us(200)).await;
        for decision in [last, first] {
            refusals.learn(&ask, &decision.outcomes[0], sent, true);
        }
        assert!(take(&refusals, &shop, &ask, 0).await.is_err());
    });
}

/// The delay that it tells has passed when its answer is there.
#[test]
fn after_a_slow_refusal_one_asks_again_for_all() {
    in_virtual_time(async {
        let (refusals, shop) = (Refusals::default(), Shop::new(0.0));
        let ask = charge(1, 1, 1_000_000, Algorithm::SlidingWindow);
        block(&refusals, &shop, &ask).await;
        advance(us(999_500)).await;
        let deadline = Instant::now() + Duration::from_secs(60);
        let check = || {
            Box::pin(refusals.check(|| [(&ask, Costs::Vary)].into_iter(), Instant::now(), deadline, || true))
        };
        let first = check().await;
        let (mut second, mut third) = (check(), check());
        assert!((&mut second).now_or_never().is_none(), "it waits for the first");
        assert!((&mut third).now_or_never().is_none(), "it waits for the first");
        let (sent, refused) = (refusals.sending(), shop.take(&ask));
        assert!(!refused.admitted);
        refusals.learn(&ask, &refused.outcomes[0], sent, true);
        advance(us(2_000)).await;
        drop(first);
        let asking = second.now_or_never();
        assert!(matches!(asking, Some(KnownAnswer::Ask(_))));
        assert!(third.now_or_never().is_none(), "it waits for the second");
    });
}

/// Those who come to a worker while one is held there.
#[test]
fn those_who_are_held_ask_together() {
    in_virtual_time(async {
        let (refusals, shop) = (Refusals::default(), Shop::new(0.0));
        let ask = charge(1, 1, 100_000, Algorithm::SlidingWindow);
        block(&refusals, &shop, &ask).await;
        advance(us(99_950)).await;
        let deadline = Instant::now() + Duration::from_secs(60);
        let check = || {
            Box::pin(refusals.check(|| [(&ask, Costs::Vary)].into_iter(), Instant::now(), deadline, || true))
        };
        let mut held = [check(), check()];
        assert!(held.iter_mut().all(|held| held.now_or_never().is_none()));
        advance(us(1_000)).await;
        let asking = held.map(FutureExt::now_or_never);
        assert!(asking.iter().all(|asking| matches!(asking, Some(KnownAnswer::Ask(_)))));
        assert!(check().now_or_never().is_none(), "it waits for their answer");
    });
}

/// At a block's end one asks. It may leave, and the block may be dropped, at any time: the others go on.
#[test]
fn those_who_wait_for_an_answer_go_on_when_it_does_not_come() {
    let ends: [fn(&Refusals, &Charge); 3] = [
        |_, _| {},
        |refusals, ask| refusals.forget(&ask.bucket),
        |refusals, _| {
            drop(refusals.known(&charge(1, 9, 1_000, Algorithm::SlidingWindow), Costs::Vary, Instant::now()));
        },
    ];
    for end in ends {
        in_virtual_time(async {
            let (refusals, shop) = (Refusals::default(), Shop::new(0.0));
            let ask = charge(1, 1, 1_000_000, Algorithm::SlidingWindow);
            block(&refusals, &shop, &ask).await;
            advance(us(1_000_000)).await;
            let deadline = Instant::now() + Duration::from_secs(60);
            let first =
                refusals.check(|| [(&ask, Costs::Vary)].into_iter(), Instant::now(), deadline, || true).await;
            assert!(matches!(first, KnownAnswer::Ask(_)));
            let second =
                refusals.check(|| [(&ask, Costs::Vary)].into_iter(), Instant::now(), deadline, || true);
            tokio::pin!(second);
            assert!(timeout(us(10_000), &mut second).await.is_err(), "it waits for the first");
            end(&refusals, &ask);
            drop(first);
            let second = timeout(us(10_000), second).await.expect("it goes on");
            assert!(matches!(second, KnownAnswer::Ask(_)));
            drop(second);
            assert_eq!(refusals.blocks.load(Relaxed), 0, "nothing stays behind");
        });
    }
}

#[test]
fn a_charge_by_another_quota_ends_a_block() {
    in_virtual_time(async {
        let (refusals, shop) = (Refusals::default(), Shop::new(0.0));
        let [narrow, wide] = [2, 9].map(|permits| charge(1, permits, 1_000_000, Algorithm::SlidingWindow));
        for _ in 0..2 {
            assert!(shop.take(&narrow).admitted);
            advance(us(100_000)).await;
        }
        // The narrow quota refuses while the wide one's call is under way. That makes the delay longer than was told.
        let sent = refusals.sending();
        advance(us(1)).await;
        let refused = shop.take(&narrow).outcomes[0];
        refusals.learn(&narrow, &refused, refusals.sending(), true);
        assert!(matches!(
            refusals.recollection(&narrow, Costs::Vary, Instant::now()),
            Recollection::Refused(_)
        ));
        refusals.learn(&wide, &shop.take(&wide).outcomes[0], sent, true);
        assert!(shop.delay_us(&narrow) > refused.delay_us.unwrap());
        assert!(matches!(refusals.recollection(&narrow, Costs::Vary, Instant::now()), Recollection::Nothing));
    });
}

#[test]
fn blocks_are_bounded() {
    in_virtual_time(async {
        let refusals = Refusals::default();
        let outcome = Outcome {
            charged: false,
            remaining: 0,
            grow_us: 1_000_000,
            delay_us: Some(1_000_000),
            rate: None,
        };
        for name in 0..SHARDS * BLOCKS_MOST * 2 {
            let mut charge = charge(1, 1, 1_000_000, Algorithm::SlidingWindow);
            charge.bucket = name.to_string().into();
            refusals.note(&charge, &outcome, refusals.sending());
        }
        assert!(refusals.blocks.load(Relaxed) <= SHARDS * BLOCKS_MOST);
        let kept: usize = refusals.shards.iter().map(|shard| shard.lock().blocks.len()).sum();
        assert_eq!(refusals.blocks.load(Relaxed), kept);
        time::resume();
    });
}
