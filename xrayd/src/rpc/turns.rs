//! Turns at a bounded number of threads, shared fairly among users.
//!
//! A user gets a turn as long as more places are free than it has turns, and it has fewer turns
//! than its share. So one user never takes half of all places, and each further user finds some.
//! Among waiting users, the one with the fewest turns is next. Root takes no turn, because it has a
//! reserve of threads.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex},
};

use tokio::sync::oneshot;

use crate::lock::lock;

/// Places of one kind.
#[derive(Debug)]
pub(super) struct Turns {
    /// Limit on turns of one user.
    share: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    free: usize,
    /// Users that have turns or wait. Other users have no entry.
    users: BTreeMap<u32, User>,
}

#[derive(Debug, Default)]
struct User {
    running: usize,
    /// In the order of their begin. Bounded by the calls and streams that a user may have.
    waiting: VecDeque<oneshot::Sender<Turn>>,
}

/// A turn. A dropped turn gives its place to the next user.
#[derive(Debug)]
#[must_use]
pub(super) struct Turn(Option<(Arc<Turns>, u32)>);

// === impl Turns ===

impl Turns {
    pub(super) fn new(places: usize, share: usize) -> Arc<Self> {
        Arc::new(Self {
            share,
            state: Mutex::new(State {
                free: places,
                users: BTreeMap::new(),
            }),
        })
    }

    /// Waits for a turn.
    pub(super) async fn wait(self: &Arc<Self>, uid: u32) -> Turn {
        if uid == 0 {
            return Turn(None);
        }
        let (sender, turn) = oneshot::channel();
        lock(&self.state).wait(uid, sender);
        self.give();
        // Not reached: a sender stays until it has a turn or its receiver is gone.
        turn.await.unwrap_or(Turn(None))
    }

    /// Gives free places to waiting users.
    fn give(self: &Arc<Self>) {
        loop {
            let next = lock(&self.state).next(self.share);
            let Some((uid, sender)) = next else { return };
            let turn = Turn(Some((Arc::clone(self), uid)));
            // A turn whose receiver is gone comes back and is dropped.
            let _ = sender.send(turn);
        }
    }
}

// === impl State ===

impl State {
    fn wait(&mut self, uid: u32, sender: oneshot::Sender<Turn>) {
        let waiting = &mut self.users.entry(uid).or_default().waiting;
        // Removes calls that were cancelled.
        waiting.retain(|other| !other.is_closed());
        waiting.push_back(sender);
    }

    /// Takes a place for the waiting user with the fewest turns, if that user may have one more.
    fn next(&mut self, share: usize) -> Option<(u32, oneshot::Sender<Turn>)> {
        self.users.retain(|_, user| {
            user.waiting.retain(|sender| !sender.is_closed());
            user.running > 0 || !user.waiting.is_empty()
        });
        let waiting = self.users.iter_mut();
        let waiting = waiting.filter(|(_, user)| !user.waiting.is_empty());
        let (&uid, user) = waiting.min_by_key(|(_, user)| user.running)?;
        if user.running >= share.min(self.free) {
            return None;
        }
        let sender = user.waiting.pop_front()?;
        user.running += 1;
        self.free -= 1;
        Some((uid, sender))
    }

    fn release(&mut self, uid: u32) {
        self.free += 1;
        if let Some(user) = self.users.get_mut(&uid) {
            user.running -= 1;
        }
    }
}

// === impl Turn ===

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some((turns, uid)) = self.0.take() {
            lock(&turns.state).release(uid);
            turns.give();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{pin::Pin, task::Context};

    use super::*;

    type Waiting = Pin<Box<dyn Future<Output = Turn>>>;

    fn wait(turns: &Arc<Turns>, uid: u32) -> Waiting {
        let turns = Arc::clone(turns);
        Box::pin(async move { turns.wait(uid).await })
    }

    /// The turn of this waiting call, if it has it.
    fn now(waiting: &mut Waiting) -> Option<Turn> {
        let mut context = Context::from_waker(std::task::Waker::noop());
        match waiting.as_mut().poll(&mut context) {
            std::task::Poll::Ready(turn) => Some(turn),
            std::task::Poll::Pending => None,
        }
    }

    fn all_at_once(turns: &Arc<Turns>, uid: u32) -> (Vec<Turn>, Vec<Waiting>) {
        let (mut got, mut waiting) = (Vec::new(), Vec::new());
        for _ in 0..100 {
            let mut one = wait(turns, uid);
            match now(&mut one) {
                Some(turn) => got.push(turn),
                None => waiting.push(one),
            }
        }
        (got, waiting)
    }

    #[test]
    fn many_greedy_users_leave_places_for_the_next_one_and_root_needs_none() {
        let turns = Turns::new(64, 16);
        let taken: Vec<_> = (1..=5).map(|uid| all_at_once(&turns, uid)).collect();
        let counts: Vec<_> = taken.iter().map(|(got, _)| got.len()).collect();
        assert_eq!(counts, [16, 16, 16, 8, 4]);
        assert!(now(&mut wait(&turns, 6)).is_some());
        assert_eq!(all_at_once(&turns, 0).0.len(), 100);
    }

    #[test]
    fn a_place_that_is_given_back_goes_to_the_user_with_the_fewest_turns() {
        let turns = Turns::new(4, 4);
        let (mut first, mut more) = all_at_once(&turns, 1);
        let (mut second, _more) = all_at_once(&turns, 2);
        assert_eq!((first.len(), second.len()), (2, 1));
        let third = now(&mut wait(&turns, 3));
        assert!(third.is_some());
        let mut fourth = wait(&turns, 4);
        assert!(now(&mut fourth).is_none());
        drop(first.pop());
        assert!(more.iter_mut().all(|one| now(one).is_none()));
        assert!(now(&mut fourth).is_some());
        drop((first, second.pop(), third));
        assert!(now(&mut more[0]).is_some());
    }

    #[test]
    fn a_caller_that_left_while_waiting_takes_no_turn_and_no_place() {
        let turns = Turns::new(2, 2);
        let (taken, waiting) = all_at_once(&turns, 1);
        assert_eq!(taken.len(), 1);
        drop(waiting);
        for _ in 0..1000 {
            let mut one = wait(&turns, 1);
            assert!(now(&mut one).is_none());
        }
        assert!(lock(&turns.state).users[&1].waiting.len() <= 1);
        let mut last = wait(&turns, 1);
        assert!(now(&mut last).is_none());
        drop(taken);
        assert!(now(&mut last).is_some());
        drop(last);
        turns.give();
        let state = lock(&turns.state);
        assert_eq!((state.free, state.users.len()), (2, 0));
    }
}
