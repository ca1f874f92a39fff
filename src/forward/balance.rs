//! Load balancing: picks the server of an upstream for a request.

use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::config::Balance;

use super::pool::UpstreamServer;

/// A server of an upstream, and its weight there.
#[derive(Debug)]
pub struct Member {
    /// The server.
    pub server: Arc<UpstreamServer>,
    /// The weight. A server's share is its weight divided by the sum of all weights.
    pub weight: u32,
}

/// A set of members, by their index.
pub type MemberIndexes = SmallVec<[usize; 16]>;

/// Picks members in proportion to their weights.
#[derive(Debug)]
pub enum Balancer {
    /// Picks, of two random members, the one with fewer requests in flight relative to its weight.
    LeastRequest,
    /// Picks a random member.
    Random,
    /// Picks the members in turn.
    RoundRobin(Mutex<Credits>),
}

/// The credit of each member for weighted round robin. The lock is held for a few additions.
type Credits = Vec<i64>;

impl Balancer {
    /// Returns a balancer of this kind.
    pub fn new(balance: Balance) -> Self {
        match balance {
            Balance::LeastRequest => Self::LeastRequest,
            Balance::Random => Self::Random,
            Balance::RoundRobin => Self::RoundRobin(Mutex::default()),
        }
    }

    /// Picks one of these members. `None` if there are none.
    pub fn pick(&self, members: &[Member], places: &[usize]) -> Option<usize> {
        match self {
            _ if places.len() < 2 => places.first().copied(),
            Self::Random => draw(members, places, None),
            Self::RoundRobin(turns) => next(&mut turns.lock(), members, places),
            Self::LeastRequest => {
                let one = draw(members, places, None)?;
                let other = draw(members, places, Some(one))?;
                // Compares requests in flight per weight, without a division.
                let load = |place: usize, other: usize| {
                    members[place].server.in_flight() as u64 * u64::from(members[other].weight)
                };
                Some(if load(other, one) < load(one, other) { other } else { one })
            }
        }
    }
}

/// Draws a random member by weight, other than this one.
fn draw(members: &[Member], places: &[usize], other_than: Option<usize>) -> Option<usize> {
    let drawn = || places.iter().copied().filter(|place| Some(*place) != other_than);
    let sum: u32 = drawn().map(|place| members[place].weight).sum();
    let mut left = fastrand::u32(..sum);
    drawn().find(|place| {
        let weight = members[*place].weight;
        let is_drawn = left < weight;
        left = left.saturating_sub(weight);
        is_drawn
    })
}

/// Returns the next member in smooth weighted round robin, as in nginx: every member gains its weight, and the one with the most
/// credit is picked and pays the sum. So the turns of a heavy member are spread between those of others.
fn next(turns: &mut Credits, members: &[Member], places: &[usize]) -> Option<usize> {
    turns.resize(members.len(), 0);
    let mut sum = 0;
    for place in places {
        let weight = i64::from(members[*place].weight);
        turns[*place] += weight;
        sum += weight;
    }
    // The first of equals wins.
    let nearest = places.iter().copied().rev().max_by_key(|place| turns[*place])?;
    turns[nearest] -= sum;
    Some(nearest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(weights: &[u32]) -> Vec<Member> {
        let member = |(port, weight): (u16, &u32)| Member {
            server: Arc::new(UpstreamServer::test(port)),
            weight: *weight,
        };
        (1..).zip(weights).map(member).collect()
    }

    fn picked(balance: Balance, members: &[Member], places: &[usize], times: usize) -> Vec<usize> {
        let balancer = Balancer::new(balance);
        (0..times).map(|_| balancer.pick(members, places).unwrap()).collect()
    }

    #[test]
    fn turns_are_spread_by_weight() {
        assert_eq!(
            picked(Balance::RoundRobin, &members(&[5, 1, 1]), &[0, 1, 2], 8),
            [0, 0, 1, 0, 2, 0, 0, 0]
        );
        assert_eq!(picked(Balance::RoundRobin, &members(&[1, 1, 1]), &[0, 1, 2], 4), [0, 1, 2, 0]);
        assert_eq!(picked(Balance::RoundRobin, &members(&[1, 1, 1]), &[1, 2], 4), [1, 2, 1, 2]);
    }

    #[test]
    fn draws_follow_the_weights() {
        for balance in [Balance::Random, Balance::LeastRequest] {
            let drawn = picked(balance, &members(&[1, 3]), &[0, 1], 20_000);
            let share = drawn.iter().sum::<usize>() as f64 / drawn.len() as f64;
            assert!((share - 0.75).abs() < 0.02, "{balance:?}: {share}");
        }
    }

    #[test]
    fn the_one_with_fewer_requests_in_flight_for_its_weight_is_picked() {
        let in_flight = |members: &[Member], counts: &[usize]| {
            let upstream = Arc::default();
            let begin =
                |member: &Member| super::super::pool::RequestInFlight::begin(&member.server, &upstream, 100);
            let begun =
                members.iter().zip(counts).flat_map(|(member, count)| (0..*count).map(move |_| member));
            begun.map(|member| begin(member).unwrap()).collect::<Vec<_>>()
        };
        let alike = members(&[1, 1]);
        let _held = in_flight(&alike, &[2, 1]);
        assert!(picked(Balance::LeastRequest, &alike, &[0, 1], 100).iter().all(|place| *place == 1));
        let heavy = members(&[3, 1]);
        let _held = in_flight(&heavy, &[2, 1]);
        assert!(picked(Balance::LeastRequest, &heavy, &[0, 1], 100).iter().all(|place| *place == 0));
    }

    #[test]
    fn no_members_give_no_pick() {
        assert_eq!(Balancer::new(Balance::Random).pick(&members(&[1]), &[]), None);
    }
}
