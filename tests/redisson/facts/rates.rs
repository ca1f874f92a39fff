//! Facts of rates that are set, changed and forgotten.

use std::time::Duration;

use tollgate_limiter::{Counted, Override, RedissonType, Scope, SetWhen};

use super::{Layout, Subject, ask, in_all_layouts, is_unsupported, rate};

in_all_layouts! {
    a_limiter_expires_when_idle_and_each_call_keeps_it_alive
    an_expiry_that_was_set_before_the_first_permit_holds_for_all_keys
    an_expiry_that_was_set_after_the_first_permit_holds_for_all_keys
    the_rate_that_was_set_can_be_read
    a_rate_can_be_set_again
    a_rate_is_set_if_absent_only_once
    a_limiter_can_be_deleted
    a_changed_rate_can_forget_what_was_counted
    permits_come_back_after_a_rate_was_set_to_keep_counts
    a_rate_that_is_set_to_keep_counts_leaves_the_difference
    a_rate_that_is_set_to_forget_counts_leaves_all
    no_rate_is_updated_where_none_is_set
    an_updated_rate_keeps_what_is_left
    an_update_to_a_higher_rate_leaves_the_difference
    an_update_to_a_lower_rate_leaves_the_difference
    an_update_below_what_is_used_leaves_nothing
    an_update_after_the_window_leaves_all
    a_changed_type_counts_from_zero
    a_time_to_keep_alive_below_the_window_is_rejected
    an_update_to_a_shorter_window_frees_what_is_older
    an_update_of_a_client_keeps_what_it_counted
    released_permits_can_be_taken_again_up_to_the_rate
}

async fn a_limiter_expires_when_idle_and_each_call_keeps_it_alive(subject: Subject) {
    let Subject { layout, limiter, ask, .. } = &subject;
    assert!(subject.try_set("1/200ms").await);
    let idle = Some(Duration::from_secs(1));
    if *layout != Layout::Redisson {
        // Counts end with their window, and the rate that was set stays.
        assert!(is_unsupported(&limiter.keep_alive(ask, idle).await));
        return;
    }
    assert!(limiter.keep_alive(ask, idle).await.unwrap());
    subject.until_no_key().await;
    assert_eq!(subject.rate().await, None);
    assert!(subject.try_set("10/2s").await);
    assert!(limiter.keep_alive(ask, Some(Duration::from_secs(40))).await.unwrap());
    assert!(limiter.expire(ask, Some(Duration::from_secs(10))).await.unwrap());
    assert!(subject.takes(1).await);
    let ttl = limiter.time_to_live(ask).await.unwrap().unwrap();
    assert!(ttl > Duration::from_secs(20), "{ttl:?}");
    assert_eq!(subject.keys().len(), 3);
}

async fn an_expiry_that_was_set_before_the_first_permit_holds_for_all_keys(subject: Subject) {
    let Subject { layout, limiter, ask, .. } = &subject;
    assert!(subject.try_set("5/200ms").await);
    if *layout == Layout::Redisson {
        limiter.keep_alive(ask, None).await.unwrap();
        assert!(limiter.expire(ask, Some(Duration::from_secs(1))).await.unwrap());
    }
    subject.acquire(1).await;
    if *layout == Layout::Memory {
        assert!(is_unsupported(&limiter.expire(ask, None).await));
    } else {
        subject.until_no_key().await;
    }
}

async fn an_expiry_that_was_set_after_the_first_permit_holds_for_all_keys(subject: Subject) {
    let Subject { layout, limiter, ask, .. } = &subject;
    assert!(subject.try_set("2/200ms").await);
    assert!(subject.takes(1).await);
    if *layout == Layout::Redisson {
        assert!(limiter.expire(ask, Some(Duration::from_millis(300))).await.unwrap());
    }
    if *layout == Layout::Memory {
        subject.until_left(2).await;
    } else {
        subject.until_no_key().await;
    }
}

async fn the_rate_that_was_set_can_be_read(subject: Subject) {
    assert_eq!(subject.rate().await, None);
    assert!(subject.try_set("1/5s").await);
    assert_eq!(subject.rate().await, Some(rate("1/5s")));
}

async fn a_rate_can_be_set_again(subject: Subject) {
    assert!(subject.try_set("1/5s").await);
    subject.set("2/5s", Counted::Forgotten).await;
    assert_eq!(subject.rate().await, Some(rate("2/5s")));
}

async fn a_rate_is_set_if_absent_only_once(subject: Subject) {
    assert!(subject.try_set("10/1s").await);
    assert!(!subject.try_set("20/1s").await);
    for _ in 0..3 {
        for _ in 0..10 {
            assert!(subject.takes(1).await);
        }
        assert!(!subject.takes(1).await);
        subject.until_left(10).await;
    }
}

async fn a_limiter_can_be_deleted(subject: Subject) {
    let Subject { layout, limiter, ask, .. } = &subject;
    assert!(!limiter.delete(ask).await.unwrap());
    assert!(subject.try_set("5/5min").await);
    if *layout == Layout::Redisson {
        assert_eq!(subject.keys().len(), 1);
    }
    assert!(subject.takes(1).await);
    assert!(limiter.delete(ask).await.unwrap());
    assert_eq!(subject.rate().await, None);
    assert_eq!(limiter.peek(ask).await.unwrap().used(), 0);
    if *layout != Layout::Memory {
        assert!(subject.keys().is_empty());
    }
}

async fn a_changed_rate_can_forget_what_was_counted(subject: Subject) {
    async fn changes(subject: &Subject) {
        for permits in [10, 20] {
            let text = format!("{permits}/1min");
            subject.set(&text, Counted::Forgotten).await;
            assert_eq!(subject.rate().await, Some(rate(&text)));
            subject.acquire(1).await;
            assert_eq!(subject.left().await, permits - 1);
        }
    }
    changes(&subject).await;
    subject.limiter.delete(&subject.ask).await.unwrap();
    changes(&subject.per_client()).await;
}

async fn permits_come_back_after_a_rate_was_set_to_keep_counts(subject: Subject) {
    subject.set("10/1s", Counted::Kept).await;
    for _ in 0..2 {
        subject.acquire(3).await;
        assert_eq!(subject.left().await, 7);
        subject.until_left(10).await;
    }
}

async fn a_rate_that_is_set_to_keep_counts_leaves_the_difference(subject: Subject) {
    subject.set("10/1min", Counted::Kept).await;
    subject.acquire(3).await;
    assert_eq!(subject.left().await, 7);
    subject.set("20/1min", Counted::Kept).await;
    assert_eq!(subject.left().await, 17);
}

async fn a_rate_that_is_set_to_forget_counts_leaves_all(subject: Subject) {
    subject.set("10/1min", Counted::Kept).await;
    subject.acquire(3).await;
    assert_eq!(subject.left().await, 7);
    subject.set("20/1min", Counted::Forgotten).await;
    assert_eq!(subject.left().await, 20);
}

async fn no_rate_is_updated_where_none_is_set(subject: Subject) {
    assert!(!subject.update("10/5s", Counted::Kept).await);
    assert_eq!(subject.rate().await, None);
    let subject = subject.per_client();
    assert!(!subject.update("10/5s", Counted::Kept).await);
    assert_eq!(subject.rate().await, None);
}

async fn an_updated_rate_keeps_what_is_left(subject: Subject) {
    subject.set("10/1min", Counted::Kept).await;
    assert!(subject.update("10/1min", Counted::Kept).await);
    assert_eq!(subject.left().await, 10);
    subject.acquire(2).await;
    assert_eq!(subject.left().await, 8);
    assert!(!subject.takes(10).await);
    assert!(subject.takes(8).await);
}

async fn an_update_to_a_higher_rate_leaves_the_difference(subject: Subject) {
    subject.set("10/30s", Counted::Kept).await;
    subject.acquire(4).await;
    assert_eq!(subject.left().await, 6);
    assert!(subject.update("20/1min", Counted::Kept).await);
    assert_eq!(subject.left().await, 16);
    assert!(subject.takes(16).await);
}

async fn an_update_to_a_lower_rate_leaves_the_difference(subject: Subject) {
    subject.set("10/30s", Counted::Kept).await;
    subject.acquire(3).await;
    assert_eq!(subject.left().await, 7);
    assert!(subject.update("5/1min", Counted::Kept).await);
    assert_eq!(subject.left().await, 2);
    assert!(!subject.takes(3).await);
    assert!(subject.takes(2).await);
}

async fn an_update_below_what_is_used_leaves_nothing(subject: Subject) {
    subject.set("10/30s", Counted::Kept).await;
    subject.acquire(8).await;
    assert_eq!(subject.left().await, 2);
    assert!(subject.update("5/1min", Counted::Kept).await);
    assert_eq!(subject.left().await, 0);
    assert!(!subject.takes(1).await);
    assert!(!subject.takes(2).await);
}

async fn an_update_after_the_window_leaves_all(subject: Subject) {
    subject.set("10/500ms", Counted::Kept).await;
    subject.acquire(8).await;
    subject.until_left(10).await;
    assert!(subject.update("10/500ms", Counted::Kept).await);
    assert_eq!(subject.left().await, 10);
}

/// In Redisson's layout a type that is set stays until the limiter is deleted: a program with another type can't take the
/// counts of the others away.
async fn a_changed_type_counts_from_zero(subject: Subject) {
    subject.set("10/1min", Counted::Kept).await;
    subject.acquire(4).await;
    assert_eq!(subject.left().await, 6);
    let Subject { layout, limiter, ask: overall, .. } = &subject;
    if *layout != Layout::Redisson {
        let own = Override { rate: rate("10/1min"), scope: Some(Scope::Instance), lasts: None };
        limiter.set_override(overall.limit(), Some(overall.key()), &own, SetWhen::Always).await.unwrap();
        // In the process, there is nothing that instances share.
        let left = if *layout == Layout::Memory { 6 } else { 10 };
        assert_eq!(subject.left().await, left);
        return;
    }
    let own = ask(*layout, RedissonType::PerClient);
    assert!(limiter.update_rate(&own, rate("10/1min"), Counted::Kept).await.unwrap());
    assert_eq!(limiter.peek(&own).await.unwrap().remaining(), 6);
    assert!(limiter.delete(&own).await.unwrap());
    limiter.set_rate(&own, rate("10/1min"), Counted::Kept).await.unwrap();
    assert_eq!(limiter.peek(&own).await.unwrap().remaining(), 10);
    let kind = subject.redis.as_ref().unwrap().connect().command(&["HGET", "facts:a", "type"]);
    assert_eq!(kind.text(), "1");
}

async fn a_time_to_keep_alive_below_the_window_is_rejected(subject: Subject) {
    let Subject { layout, limiter, ask, .. } = &subject;
    subject.set("10/5s", Counted::Kept).await;
    assert!(limiter.keep_alive(ask, Some(Duration::from_secs(1))).await.is_err());
    if *layout != Layout::Redisson {
        return;
    }
    // A longer window lengthens it, where Redisson would forget what counts.
    assert!(limiter.keep_alive(ask, Some(Duration::from_secs(5))).await.unwrap());
    assert!(subject.update("10/1h", Counted::Kept).await);
    let ttl = limiter.time_to_live(ask).await.unwrap().unwrap();
    assert!(ttl > Duration::from_secs(3_600), "{ttl:?}");
}

async fn an_update_to_a_shorter_window_frees_what_is_older(subject: Subject) {
    subject.set("10/1min", Counted::Kept).await;
    subject.acquire(3).await;
    assert_eq!(subject.left().await, 7);
    assert!(subject.update("10/100ms", Counted::Kept).await);
    subject.until_left(10).await;
}

async fn an_update_of_a_client_keeps_what_it_counted(subject: Subject) {
    let subject = subject.per_client();
    subject.set("10/1min", Counted::Kept).await;
    subject.acquire(3).await;
    assert_eq!(subject.left().await, 7);
    assert!(subject.update("20/1min", Counted::Kept).await);
    assert_eq!(subject.left().await, 17);
}

/// A negative number of permits can't be written here. Only limits that are set up for it take permits back in Tollgate's own
/// layout.
async fn released_permits_can_be_taken_again_up_to_the_rate(subject: Subject) {
    if subject.layout != Layout::Redisson {
        assert!(is_unsupported(&subject.limiter.release(&subject.ask, None).await));
    }
    async fn releases(subject: &Subject) {
        subject.set("10/1min", Counted::Forgotten).await;
        subject.acquire(3).await;
        assert_eq!(subject.left().await, 7);
        for (permits, changed) in [(3, true), (10, false), (0, false)] {
            let ask = subject.ask.clone().cost(permits);
            assert_eq!(subject.limiter.release(&ask, None).await.unwrap(), changed, "{permits}");
            assert_eq!(subject.left().await, 10);
        }
        assert!(subject.takes(10).await && !subject.takes(1).await);
    }
    let subject = subject.with_refunds();
    releases(&subject).await;
    assert!(subject.limiter.delete(&subject.ask).await.unwrap());
    releases(&subject.per_client().with_refunds()).await;
}
