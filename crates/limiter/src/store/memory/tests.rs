//! The store by itself, at instants that the tests choose.

use proptest::collection;
use proptest::prelude::*;

use super::*;

fn charge(bucket: &str, permits: u32, window_us: u64) -> Charge {
    let bucket = Bytes::copy_from_slice(bucket.as_bytes());
    Charge { bucket, quota: Rate { permits, window_us }.into(), cost: 1, shadow: false }
}

fn take_at(store: &MemoryStore, time_us: u64, charges: &[Charge]) -> Result<Decision, StoreError> {
    store.operate_at(time_us, &Operation::Take(charges.into())).map(|reply| match reply {
        Reply::Decision(decision) => decision,
        reply => panic!("{reply:?}"),
    })
}

#[test]
fn nothing_is_charged_where_one_limit_refuses() {
    let store = MemoryStore::new(1 << 20);
    let (tight, wide) = (charge("tight", 1, 1_000_000), charge("wide", 9, 1_000_000));
    let both = [tight.clone(), wide.clone()];
    assert!(take_at(&store, 5_000_000, &both).unwrap().admitted);
    let refused = take_at(&store, 5_000_001, &both).unwrap();
    assert!(!refused.admitted);
    assert_eq!(refused.outcomes[0].delay_us, Some(999_999));
    assert_eq!(refused.outcomes[1].remaining, 8);
}

#[test]
fn a_shadowing_limit_refuses_nobody_and_counts_what_it_has_room_for() {
    let store = MemoryStore::new(1 << 20);
    let shadow = Charge { shadow: true, ..charge("shadow", 1, 1_000_000) };
    let both = [shadow, charge("wide", 9, 1_000_000)];
    let charged = |time_us| {
        let decision = take_at(&store, time_us, &both).unwrap();
        assert!(decision.admitted);
        [decision.outcomes[0].charged, decision.outcomes[1].charged]
    };
    assert_eq!(charged(5_000_000), [true, true]);
    assert_eq!(charged(5_000_001), [false, true]);
}

#[test]
fn the_bound_holds_new_keys_off_and_drops_no_live_bucket() {
    let store = MemoryStore::new(64 << 10);
    let quota = |name: usize| charge(&format!("bucket-{name}"), 1, 10_000_000);
    let admitted =
        (0..10_000).take_while(|name| take_at(&store, 20_000_000, &[quota(*name)]).is_ok()).count();
    assert!((100..1_000).contains(&admitted), "{admitted}");
    assert!(store.bytes() <= 64 << 10);
    for name in 0..admitted {
        assert!(!take_at(&store, 20_500_000, &[quota(name)]).unwrap().admitted, "{name} was dropped");
    }
    // Once the old ones have expired, there is room again.
    assert!(take_at(&store, 31_000_000, &[quota(99_999)]).unwrap().admitted);
}

/// A charge of the limit `l` by a key, from a network.
struct Newcomer {
    charge: Charge,
    network: Option<Charge>,
    is_moved: bool,
    is_other_reading: bool,
}

impl Newcomer {
    fn new(key: &str, network: u32, permits: u32, window_us: u64) -> Self {
        let network = charge(&format!(":l:sw:{{network={network}}}"), permits, window_us);
        Self {
            charge: charge(&format!(":l:sw:{{{key}}}"), permits, window_us),
            network: Some(network),
            is_moved: false,
            is_other_reading: false,
        }
    }
}

impl Placed for Newcomer {
    fn charge(&self) -> &Charge {
        &self.charge
    }

    fn limit(&self) -> Option<&str> {
        Some("l")
    }

    fn overflow(&self) -> Option<Overflow> {
        let rest = Charge { bucket: Bytes::from_static(b":l:sw:{network=others}"), ..self.charge.clone() };
        Some(Overflow { network: self.network.clone(), rest })
    }

    fn is_other_reading(&self) -> bool {
        self.is_other_reading
    }

    fn move_to(&mut self, charge: Charge) {
        (self.charge, self.is_moved) = (charge, true);
    }

    fn is_moved(&self) -> bool {
        self.is_moved
    }
}

/// Whether a key from a network is admitted, and whether it was counted by the network.
fn ask(store: &MemoryStore, time_us: u64, key: &str, network: u32, permits: u32) -> (bool, bool) {
    let mut asked = [Newcomer::new(key, network, permits, 10_000_000)];
    let decision = store.take_at(time_us, &mut asked).expect("a limit with a share always decides");
    (decision.admitted, asked[0].is_moved)
}

/// A store in which the share of the limit `l` is used up by keys from network 1.
fn flooded(time_us: u64) -> MemoryStore {
    let store = MemoryStore::new(1 << 20);
    store.announce(["l", "other"]);
    assert_eq!(ask(&store, time_us, "known", 2, 3), (true, false));
    for key in 0..10_000 {
        let (_, is_by_network) = ask(&store, time_us, &format!("invented-{key}"), 1, 3);
        assert!(key > 200 || !is_by_network);
    }
    store
}

#[test]
fn past_its_share_a_limit_counts_new_keys_by_network() {
    let (store, now) = (flooded(20_000_000), 20_000_001);
    assert_eq!(store.shares.spilling(now), ["l"]);
    assert!(store.shares.spilling(now + 60_000_000).is_empty());
    // Who is known keeps the own count.
    let known: Vec<_> = (0..3).map(|_| ask(&store, now, "known", 1, 3)).collect();
    assert_eq!(known, [(true, false), (true, false), (false, false)]);
    // The network of the flood is used up, and another one isn't.
    assert_eq!(ask(&store, now, "new", 1, 3), (false, true));
    let other: Vec<_> = (0..4).map(|key| ask(&store, now, &format!("new-{key}"), 3, 3)).collect();
    assert_eq!(other, [(true, true), (true, true), (true, true), (false, true)]);
    assert_eq!(ask(&store, now, "invented-7", 1, 3), (true, false));
}

#[test]
fn readings_of_one_request_that_are_counted_together_pay_once() {
    let (store, now) = (flooded(20_000_000), 20_000_001);
    let mut ask = |costs: &[u32]| {
        let newcomer = |(at, cost): (usize, &u32)| {
            let mut asked = Newcomer::new(&format!("reading-{at}"), 3, 3, 10_000_000);
            let network = asked.network.as_mut().expect("it has one");
            (asked.charge.cost, network.cost) = (*cost, *cost);
            asked.is_other_reading = at > 0;
            asked
        };
        let mut asked: Vec<_> = costs.iter().enumerate().map(newcomer).collect();
        let admitted = store.take_at(now, &mut asked).expect("a limit with a share always decides").admitted;
        assert!(asked.iter().all(|asked| asked.is_moved));
        admitted
    };
    assert_eq!([&[1, 1, 1, 1][..], &[1, 2, 0], &[1, 1]].map(&mut ask), [true, true, false]);
}

#[test]
fn a_limit_takes_no_memory_from_another_one() {
    let store = flooded(20_000_000);
    let share = store.shares.of(Some("other"));
    let other = charge(":other:sw:{k}", 3, 10_000_000);
    assert!(store.has_room_for_key(&share, &other) && store.bytes() <= 1 << 19, "{}", store.bytes());
}

#[test]
fn a_key_that_is_counted_by_network_stays_so_until_that_is_empty() {
    let (store, now) = (flooded(20_000_000), 25_000_000);
    let used_up: Vec<_> = (0..4).map(|_| ask(&store, now, "mover", 3, 3)).collect();
    assert_eq!(used_up, [(true, true), (true, true), (true, true), (false, true)]);
    // By now there is memory again, but the count isn't over.
    let later = 34_000_000;
    assert_eq!(ask(&store, later, "from-elsewhere", 4, 3), (true, false));
    assert_eq!(ask(&store, later, "mover", 3, 3), (false, true));
    assert_eq!(ask(&store, 35_000_000, "mover", 3, 3), (true, false));
}

#[test]
fn the_buckets_of_networks_are_bounded() {
    let store = flooded(20_000_000);
    let admitted =
        (0..20_000_u32).filter(|at| ask(&store, 20_000_001, &format!("n-{at}"), 10 + at, 3).0).count();
    let (_, networks) = store.shares.buckets();
    // One from each network that has a bucket, and three from all others together.
    assert_eq!(admitted, networks - 2 + 3);
    assert!((100..1_000).contains(&networks) && store.bytes() <= 1 << 19, "{networks} {}", store.bytes());
}

/// Its log can't grow: what it counts ends later, but the quota is all there.
#[test]
fn a_known_key_needs_no_memory_to_be_counted() {
    let store = MemoryStore::new(1 << 20);
    store.announce(["l"]);
    let mut now = 20_000_000;
    assert_eq!(ask(&store, now, "known", 2, 100), (true, false));
    for key in 0..20_000 {
        for _ in 0..5 {
            ask(&store, now, &format!("invented-{key}"), 1, 100);
        }
    }
    assert!(store.bytes() <= 1 << 20, "{}", store.bytes());
    for turn in 1..100 {
        now += 10_000;
        assert_eq!(ask(&store, now, "known", 2, 100), (true, false), "{turn}");
    }
    assert_eq!(ask(&store, now, "known", 2, 100), (false, false));
    // In 10 s after the last one all of it has ended, whatever was joined.
    now += 10_000_000;
    assert_eq!(ask(&store, now, "known", 2, 100), (true, false));
}

#[test]
fn requests_without_an_address_are_counted_together() {
    let store = flooded(20_000_000);
    let mut admitted = 0;
    for key in 0..10 {
        let mut asked = [Newcomer { network: None, ..Newcomer::new(&format!("x-{key}"), 0, 3, 10_000_000) }];
        admitted += usize::from(store.take_at(20_000_001, &mut asked).unwrap().admitted);
    }
    assert_eq!(admitted, 3);
}

#[test]
fn two_keys_of_one_network_in_one_request_are_both_counted() {
    let store = flooded(20_000_000);
    let both = || ["one", "two"].map(|key| Newcomer::new(key, 5, 3, 10_000_000));
    assert!(store.take_at(20_000_001, &mut both()).unwrap().admitted);
    assert!(!store.take_at(20_000_001, &mut both()).unwrap().admitted);
    assert_eq!(ask(&store, 20_000_001, "three", 5, 3), (true, true));
}

/// What a request that admits nothing at first owes later is counted where its key is.
#[test]
fn a_debt_is_counted_by_network_too() {
    let store = flooded(20_000_000);
    let before = store.shares.spilled();
    for key in 0..3 {
        store.record_at(20_000_001, &mut Newcomer::new(&format!("failed-{key}"), 6, 3, 10_000_000)).unwrap();
    }
    assert_eq!(store.shares.spilled() - before, 3);
    assert_eq!(ask(&store, 20_000_002, "fourth", 6, 3), (false, true));
}

#[test]
fn expired_buckets_are_swept_as_new_ones_come() {
    let store = MemoryStore::new(1 << 30);
    for name in 0..200_000_u64 {
        let bucket = charge(&format!("bucket-{name}"), 1, 1_000);
        assert!(take_at(&store, 10_000_000 + name * 100, &[bucket]).unwrap().admitted);
    }
    assert!(store.bytes() < 4 << 20, "{} bytes", store.bytes());
}

/// A flood of requests that have ended would keep new keys of its network together for as long as a lease lasts.
#[test]
fn permits_that_are_given_back_take_no_memory() {
    let store = MemoryStore::new(64 << 10);
    for key in 0..10_000 {
        let bucket = charge(&format!("invented-{key}"), 1, 10_000_000);
        let bucket = Charge { quota: Quota::concurrency(1), ..bucket };
        let now = 20_000_000 + key * 1_000;
        let decision = take_at(&store, now, &[bucket]).unwrap();
        for Lease { bucket, quota, id } in decision.leases {
            store.operate_at(now, &Operation::On { bucket, quota, act: Act::Release(id) }).unwrap();
        }
    }
}

proptest! {
    /// Sweeps, shrinking logs and charges in one microsecond included.
    #[test]
    fn the_count_of_bytes_is_that_of_the_buckets(
        steps in collection::vec((0..2_000_u64, 0..300_u32, 0..3_u32, any::<bool>()), 1..600),
    ) {
        let store = MemoryStore::new(1 << 20);
        let mut time_us = 10_000_000;
        for (pause_us, name, shared, is_long) in steps {
            time_us += pause_us;
            let window_us = if is_long { 200_000 } else { 5_000 };
            let both = [charge(&format!("one-{name}"), 50, window_us), charge(&format!("all-{shared}"), 300, window_us)];
            take_at(&store, time_us, &both).unwrap();
            let counted: usize = store.shards.iter().map(|shard| shard.lock().bytes()).sum();
            prop_assert_eq!(store.bytes(), counted);
        }
    }
}

proptest! {
    #[test]
    fn a_bucket_that_is_known_is_decided_alike(
        algorithm in prop::sample::select(vec![
            Algorithm::SlidingWindow,
            Algorithm::SlidingCells { cells: 4 },
            Algorithm::FixedWindow,
            Algorithm::Gcra { burst: Some(3) },
            Algorithm::Concurrency,
        ]),
        steps in collection::vec((0..2_000_u64, 0..4_u32, any::<bool>()), 1..100),
    ) {
        let (fast, slow) = (MemoryStore::new(1 << 20), MemoryStore::new(1 << 20));
        let mut time_us = 10_000_000;
        for (pause_us, cost, shadow) in steps {
            time_us += pause_us;
            let quota = Quota::new(algorithm, Rate { permits: 5, window_us: 5_000 });
            let bucket = Bytes::from_static(b"b");
            let charges = [Charge { bucket, quota, cost, shadow }];
            let expected = take_at(&slow, time_us, &charges).unwrap();
            let decided = fast.decide_known(time_us, &charges[0]);
            let decided = decided.unwrap_or_else(|| take_at(&fast, time_us, &charges).unwrap());
            prop_assert_eq!((decided.admitted, decided.outcomes), (expected.admitted, expected.outcomes));
            prop_assert_eq!(fast.bytes(), slow.bytes());
        }
    }
}

#[test]
fn the_count_of_bytes_comes_back_to_zero() {
    let store = MemoryStore::new(1 << 30);
    for time_us in 0..5_000 {
        let name = format!("bucket-{}", time_us % 70);
        assert!(take_at(&store, 1_000_000 + time_us, &[charge(&name, 5_000, 1_000)]).is_ok());
    }
    for step in 0..64 {
        store.sweep_some(9_000_000 + step * SWEEP_EVERY_US);
    }
    assert_eq!((store.bytes(), store.shares.buckets()), (0, (0, 0)));
}
