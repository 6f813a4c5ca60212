//! What is known of each function's sleds. The control thread alone changes it; anybody may look.

use std::sync::{
    Mutex,
    atomic::{AtomicU32, Ordering},
};

use xray_trace::model::FunctionId;

use super::Switch;
use crate::{lock::lock, refusal::Result};

/// The states of all functions, by id.
#[derive(Debug)]
pub(super) struct States {
    states: Mutex<Vec<State>>,
    /// Functions that are not off. Written with `states`.
    on: AtomicU32,
}

/// Whether a function records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Off,
    On,
    /// A toggle is under way or failed half way, or left sleds of the request alone: any of its sleds may be on.
    Unsure,
}

// === impl States ===

impl States {
    /// All off.
    pub(super) fn new(functions: usize) -> Self {
        Self {
            states: Mutex::new(vec![State::Off; functions]),
            on: AtomicU32::new(0),
        }
    }

    /// From now on there are so many functions.
    pub(super) fn grow(&self, functions: usize) {
        let mut states = lock(&self.states);
        let functions = functions.max(states.len());
        states.resize(functions, State::Off);
    }

    /// True unless every sled of the function is known to be off.
    pub(super) fn is_on(&self, id: FunctionId) -> bool {
        lock(&self.states)
            .get(id.0 as usize)
            .is_some_and(|&state| state != State::Off)
    }

    /// How many may be on.
    pub(super) fn functions_on(&self) -> u32 {
        self.on.load(Ordering::Relaxed)
    }

    /// Those of `ids` that a switch would change.
    pub(super) fn changing(&self, ids: Vec<FunctionId>, to: Switch) -> Vec<FunctionId> {
        let states = lock(&self.states);
        let changes = |id: &FunctionId| {
            let state = states.get(id.0 as usize);
            state.is_some_and(|&state| state != wanted(to))
        };
        ids.into_iter().filter(changes).collect()
    }

    /// Has `switch` bring the sleds of `ids` to `to`; `all` says of what it did whether those are all. What could not be switched on, because somebody else had
    /// patched there, is tried again the next time. What may be on never counts as off: not before it is done, and not when it
    /// could neither be done nor undone.
    ///
    /// # Errors
    /// What `switch` says. What was being switched on is off again then, or counts as on.
    pub(super) fn toggle<T>(
        &self,
        ids: &[FunctionId],
        to: Switch,
        mut switch: impl FnMut(Switch) -> Result<T>,
        all: impl Fn(&T) -> bool,
    ) -> Result<T> {
        self.set(ids, State::Unsure);
        let done = switch(to);
        let state = match (&done, to) {
            (Ok(done), Switch::On) if !all(done) => State::Unsure,
            (Ok(_), _) => wanted(to),
            // Who is told that nothing was switched on finds nothing on.
            (Err(_), Switch::On) if switch(Switch::Off).is_ok() => State::Off,
            (Err(_), _) => State::Unsure,
        };
        self.set(ids, state);
        done
    }

    /// The module of these functions is gone, and their sleds with it.
    pub(super) fn forget(&self, ids: impl Iterator<Item = FunctionId>) {
        let ids: Vec<FunctionId> = ids.collect();
        self.set(&ids, State::Off);
    }

    fn set(&self, ids: &[FunctionId], state: State) {
        let mut states = lock(&self.states);
        let mut on = self.on.load(Ordering::Relaxed);
        for id in ids {
            if let Some(place) = states.get_mut(id.0 as usize) {
                on -= u32::from(*place != State::Off);
                on += u32::from(state != State::Off);
                *place = state;
            }
        }
        self.on.store(on, Ordering::Relaxed);
    }
}

const fn wanted(to: Switch) -> State {
    match to {
        Switch::On => State::On,
        Switch::Off => State::Off,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refusal::{Reason, Refusal};

    const IDS: [FunctionId; 1] = [FunctionId(0)];

    fn refused() -> Result<()> {
        Err(Refusal::new(Reason::MemoryWrite, "no".to_owned()))
    }

    #[test]
    fn what_could_not_be_switched_on_is_switched_off_again() {
        let states = States::new(1);
        let mut asked = Vec::new();
        let switch = |to| {
            assert!(states.is_on(FunctionId(0)), "it may be, meanwhile");
            asked.push(to);
            match to {
                Switch::On => refused(),
                Switch::Off => Ok(()),
            }
        };
        let result = states.toggle(&IDS, Switch::On, switch, |()| true);
        result.unwrap_err();
        assert_eq!(asked, [Switch::On, Switch::Off]);
        assert_eq!(states.functions_on(), 0);
        assert!(!states.is_on(FunctionId(0)));
    }

    #[test]
    fn what_may_be_on_counts_as_on_and_can_be_switched_either_way() {
        for to in [Switch::On, Switch::Off] {
            let states = States::new(1);
            states
                .toggle(&IDS, Switch::On, |_| refused(), |()| true)
                .unwrap_err();
            assert_eq!(states.functions_on(), 1);
            assert_eq!(states.changing(IDS.to_vec(), to), IDS);
            states.toggle(&IDS, to, |_| Ok(()), |()| true).unwrap();
            assert_eq!(states.is_on(FunctionId(0)), to == Switch::On);
        }
    }

    #[test]
    fn what_somebody_else_had_patched_is_tried_again() {
        let states = States::new(1);
        let again = |to| states.changing(IDS.to_vec(), to);
        for (to, all, left) in [
            (Switch::On, false, &IDS[..]),
            (Switch::On, true, &[]),
            (Switch::Off, false, &[]),
        ] {
            states.toggle(&IDS, to, |_| Ok(()), |()| all).unwrap();
            assert_eq!(again(to), left, "{to:?} {all}");
            assert_eq!(states.is_on(FunctionId(0)), to == Switch::On);
        }
    }

    #[test]
    fn what_is_unloaded_is_not_on() {
        let states = States::new(1);
        states.grow(3);
        let ids = [FunctionId(0), FunctionId(2)];
        states
            .toggle(&ids, Switch::On, |_| Ok(()), |()| true)
            .unwrap();
        assert_eq!(states.functions_on(), 2);
        states.forget([FunctionId(1), FunctionId(2)].into_iter());
        assert_eq!(states.functions_on(), 1);
        assert!(!states.is_on(FunctionId(2)));
    }
}
