//! Facts of permits that are taken, refused and waited for.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};
use tollgate_limiter::Counted;

use super::{Subject, in_all_layouts};

in_all_layouts! {
    waiters_use_the_whole_rate_and_never_more
    a_permit_comes_back_when_its_own_window_ends
    all_permits_are_available_after_the_window
    more_than_the_rate_is_an_error_and_takes_nothing
    without_time_to_wait_the_rest_is_refused
    a_caller_with_too_little_time_is_refused
    a_caller_without_a_deadline_waits_for_each_permit
    several_waiters_take_no_more_than_the_rate
    several_callers_that_try_take_no_more_than_the_rate
}

async fn waiters_use_the_whole_rate_and_never_more(subject: Subject) {
    subject.set("100/1s", Counted::Forgotten).await;
    let until = Instant::now() + Duration::from_secs(3);
    let waiters =
        (0..20).map(async |_| while subject.limiter.acquire(&subject.ask, Some(until)).await.is_ok() {});
    let mut used = Vec::new();
    let watch = async {
        while Instant::now() < until {
            used.push(subject.limiter.peek(&subject.ask).await.unwrap().used());
            sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::join!(join_all(waiters), watch);
    assert!(used.iter().all(|used| *used <= 100), "{used:?}");
    let whole = used.iter().filter(|used| **used == 100).count();
    assert!(2 * whole > used.len(), "{whole} of {}: {used:?}", used.len());
}

async fn a_permit_comes_back_when_its_own_window_ends(subject: Subject) {
    assert!(subject.try_set("2/2s").await);
    assert!(subject.takes(1).await);
    sleep(Duration::from_millis(1_200)).await;
    assert!(subject.takes(1).await);
    subject.acquire(1).await;
    assert!(!subject.takes(1).await);
}

async fn all_permits_are_available_after_the_window(subject: Subject) {
    assert!(subject.try_set("10/500ms").await);
    assert_eq!(subject.left().await, 10);
    subject.acquire(1).await;
    subject.until_left(10).await;
}

async fn more_than_the_rate_is_an_error_and_takes_nothing(subject: Subject) {
    let subject = subject.per_client();
    assert!(subject.try_set("1/1s").await);
    let refusal = subject.limiter.try_acquire(subject.ask.clone().cost(20)).await.unwrap_err();
    assert_eq!(refusal.retry_after(), None);
    assert!(refusal.to_string().contains("costs more than the limit ever allows"), "{refusal}");
    assert!(subject.takes(1).await);
}

async fn without_time_to_wait_the_rest_is_refused(subject: Subject) {
    assert!(subject.try_set("5/2s").await);
    for _ in 0..2 {
        for left in (0..5).rev() {
            assert!(subject.limiter.acquire(&subject.ask, Some(Instant::now())).await.is_ok());
            assert_eq!(subject.left().await, left);
        }
        for _ in 0..5 {
            assert!(subject.limiter.acquire(&subject.ask, Some(Instant::now())).await.is_err());
        }
        subject.until_left(5).await;
    }
}

async fn a_caller_with_too_little_time_is_refused(subject: Subject) {
    assert!(subject.try_set("1/1min").await);
    let within_a_second = || Some(Instant::now() + Duration::from_secs(1));
    assert!(subject.limiter.acquire(&subject.ask, within_a_second()).await.is_ok());
    let refusal = subject.limiter.acquire(&subject.ask, within_a_second()).await.unwrap_err();
    // It knows when it would have got in, and so it hasn't waited.
    assert!(refusal.retry_after() > Some(Duration::from_secs(30)));
    assert!(!subject.takes(1).await);
}

async fn a_caller_without_a_deadline_waits_for_each_permit(subject: Subject) {
    assert!(subject.try_set("1/500ms").await);
    let since = Instant::now();
    for _ in 0..4 {
        subject.acquire(1).await;
    }
    assert!(!subject.takes(1).await);
    assert!(since.elapsed() >= Duration::from_millis(1_495));
}

/// Takes 108 permits of 18 in 200 ms with eight callers, and returns the time that it took.
async fn take_with_eight(subject: Subject, take: impl AsyncFn(&Subject)) -> Duration {
    assert!(subject.try_set("18/200ms").await);
    assert!(!subject.try_set("36/200ms").await);
    let since = Instant::now();
    let subject = Arc::new(subject);
    join_all((0..8).map(async |caller| {
        for _ in 0..if caller < 4 { 14 } else { 13 } {
            take(&subject).await;
        }
    }))
    .await;
    since.elapsed()
}

async fn several_waiters_take_no_more_than_the_rate(subject: Subject) {
    let took = take_with_eight(subject, async |subject| subject.acquire(1).await).await;
    // 18 at once, and five windows for the others.
    assert!(took >= Duration::from_millis(995), "{took:?}");
}

async fn several_callers_that_try_take_no_more_than_the_rate(subject: Subject) {
    let take = async |subject: &Subject| {
        while !subject.takes(1).await {
            sleep(Duration::from_millis(fastrand::u64(..10))).await;
        }
    };
    let took = take_with_eight(subject, take).await;
    assert!(took >= Duration::from_millis(995), "{took:?}");
}
