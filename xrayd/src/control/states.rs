//! The known state of each function's sleds. Only the controller changes it, and any thread
//! reads it. Sleds are written elsewhere.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicU32, Ordering},
    },
};

use xray_trace::model::FunctionId;

use sled_encoders::Capture;

use crate::{lock::lock, refusal::Result, types::Wanted};

/// The states of all functions, by id.
#[derive(Debug)]
pub(crate) struct States {
    states: Mutex<Vec<State>>,
    /// Functions that are not off. Written with `states`.
    on: AtomicU32,
    /// Functions among them that record values. Written with `states`.
    with_values: AtomicU32,
}

/// The state of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Off,
    On(Capture),
    /// Any sled of the function may be on: a toggle is under way, failed half way, or left some of
    /// its sleds alone. The values are those that were requested last.
    Unsure(Capture),
}

// === impl States ===

impl States {
    /// All functions are off.
    pub(crate) fn new(functions: usize) -> Self {
        Self {
            states: Mutex::new(vec![State::Off; functions]),
            on: AtomicU32::new(0),
            with_values: AtomicU32::new(0),
        }
    }

    /// Adds functions, up to this number.
    pub(crate) fn grow(&self, functions: usize) {
        let mut states = lock(&self.states);
        let functions = functions.max(states.len());
        states.resize(functions, State::Off);
    }

    /// The values that are recorded of the function's calls. `None` if every sled of it is known to
    /// be off.
    pub(crate) fn recorded(&self, id: FunctionId) -> Option<Capture> {
        match lock(&self.states).get(id.0 as usize)? {
            State::On(capture) | State::Unsure(capture) => Some(*capture),
            State::Off => None,
        }
    }

    /// The same for all functions, by id.
    pub(super) fn all_recorded(&self) -> Vec<Option<Capture>> {
        let states = lock(&self.states);
        let recorded = states.iter().map(|state| match *state {
            State::On(capture) | State::Unsure(capture) => Some(capture),
            State::Off => None,
        });
        recorded.collect()
    }

    /// The functions of `ids` that are known to be off.
    pub(crate) fn off(&self, ids: &[FunctionId]) -> Vec<FunctionId> {
        let states = lock(&self.states);
        let is_off = |id: &&FunctionId| {
            let state = states.get(id.0 as usize);
            state.is_none_or(|&state| state == State::Off)
        };
        ids.iter().filter(is_off).copied().collect()
    }

    /// Functions that may be on.
    pub(crate) fn functions_on(&self) -> u32 {
        self.on.load(Ordering::Relaxed)
    }

    /// Functions whose arguments or results are recorded.
    pub(crate) fn functions_with_values(&self) -> u32 {
        self.with_values.load(Ordering::Relaxed)
    }

    /// The functions of `ids` that a switch would change.
    pub(super) fn changing(&self, ids: Vec<FunctionId>, to: Wanted) -> Vec<FunctionId> {
        let states = lock(&self.states);
        let changes = |id: &FunctionId| {
            let state = states.get(id.0 as usize);
            state.is_some_and(|&state| state != after(to))
        };
        ids.into_iter().filter(changes).collect()
    }

    /// Calls `switch` to bring the sleds of `ids` to `to`.
    ///
    /// `all` reports from the result whether all sleds were switched. Sleds that could not be
    /// switched on, because another tracer has patched them, are tried again by the next toggle. A
    /// function that may be on never counts as off: neither while it is being switched, nor if it
    /// could neither be switched nor be switched back.
    ///
    /// # Errors
    /// The error of `switch`. If functions were to be switched on, `switch` was called again to
    /// undo that. Functions for which that failed count as on.
    pub(crate) fn toggle<T>(
        &self,
        ids: &[FunctionId],
        to: Wanted,
        mut switch: impl FnMut(&[FunctionId], Wanted) -> Result<T>,
        all: impl Fn(&T) -> bool,
    ) -> Result<T> {
        let before = self.by_state(ids);
        for (state, ids) in &before {
            self.set(ids, state.unsure(to));
        }
        let done = switch(ids, to);
        match (&done, to) {
            (Ok(done), Wanted::On(_)) if !all(done) => {}
            (Ok(_), _) => self.set(ids, after(to)),
            // A failed request to switch on leaves nothing changed.
            (Err(_), Wanted::On(_)) => {
                for (state, ids) in before {
                    let back = match state {
                        State::Off => Wanted::Off,
                        State::On(capture) => Wanted::On(capture),
                        State::Unsure(_) => {
                            self.set(&ids, state);
                            continue;
                        }
                    };
                    self.set(&ids, state.unsure(back));
                    if switch(&ids, back).is_ok_and(|done| back == Wanted::Off || all(&done)) {
                        self.set(&ids, state);
                    }
                }
            }
            (Err(_), Wanted::Off) => {}
        }
        done
    }

    /// Marks functions as off because their module is gone with its sleds.
    pub(crate) fn forget(&self, ids: impl Iterator<Item = FunctionId>) {
        let ids: Vec<FunctionId> = ids.collect();
        self.set(&ids, State::Off);
    }

    fn by_state(&self, ids: &[FunctionId]) -> BTreeMap<State, Vec<FunctionId>> {
        let states = lock(&self.states);
        let mut by_state = BTreeMap::<State, Vec<FunctionId>>::new();
        for &id in ids {
            if let Some(&state) = states.get(id.0 as usize) {
                by_state.entry(state).or_default().push(id);
            }
        }
        by_state
    }

    fn set(&self, ids: &[FunctionId], state: State) {
        let mut states = lock(&self.states);
        let mut on = self.on.load(Ordering::Relaxed);
        let mut with_values = self.with_values.load(Ordering::Relaxed);
        for id in ids {
            if let Some(place) = states.get_mut(id.0 as usize) {
                on -= u32::from(*place != State::Off);
                on += u32::from(state != State::Off);
                with_values -= u32::from(place.has_values());
                with_values += u32::from(state.has_values());
                *place = state;
            }
        }
        self.on.store(on, Ordering::Relaxed);
        self.with_values.store(with_values, Ordering::Relaxed);
    }
}

// === impl State ===

impl State {
    fn has_values(self) -> bool {
        matches!(self, Self::On(capture) | Self::Unsure(capture) if !capture.is_none())
    }

    /// The state during a switch from this state.
    fn unsure(self, to: Wanted) -> Self {
        match (to, self) {
            (Wanted::On(capture), _) | (Wanted::Off, Self::On(capture) | Self::Unsure(capture)) => {
                Self::Unsure(capture)
            }
            (Wanted::Off, Self::Off) => Self::Unsure(Capture::NONE),
        }
    }
}

const fn after(to: Wanted) -> State {
    match to {
        Wanted::On(capture) => State::On(capture),
        Wanted::Off => State::Off,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refusal::{Reason, Refusal};

    const IDS: [FunctionId; 1] = [FunctionId(0)];
    const ON: Wanted = Wanted::On(Capture::NONE);

    fn refused() -> Result<()> {
        Err(Refusal::new(Reason::MemoryWrite, "no".to_owned()))
    }

    #[test]
    fn a_function_that_could_not_be_switched_on_is_switched_off_again() {
        let states = States::new(1);
        let mut asked = Vec::new();
        let switch = |_: &[FunctionId], to| {
            assert!(
                states.recorded(FunctionId(0)).is_some(),
                "it may be, meanwhile"
            );
            asked.push(to);
            match to {
                Wanted::On(_) => refused(),
                Wanted::Off => Ok(()),
            }
        };
        let result = states.toggle(&IDS, ON, switch, |()| true);
        result.unwrap_err();
        assert_eq!(asked, [ON, Wanted::Off]);
        assert_eq!(states.functions_on(), 0);
        assert!(states.recorded(FunctionId(0)).is_none());
    }

    /// Three functions are off, on, and on with values; all are to record something else, which
    /// fails half way.
    #[test]
    fn a_failed_switch_leaves_enabled_functions_on() {
        let capture = |arguments| Capture::NONE.with_arguments(arguments).unwrap();
        let (two, three) = (Wanted::On(capture(2)), Wanted::On(capture(3)));
        let ids = [FunctionId(0), FunctionId(1), FunctionId(2)];
        for stuck in [false, true] {
            let states = States::new(3);
            states
                .toggle(&ids[1..2], ON, |_, _| Ok(()), |()| true)
                .unwrap();
            states
                .toggle(&ids[2..], two, |_, _| Ok(()), |()| true)
                .unwrap();
            let mut asked = Vec::new();
            let switch = |ids: &[FunctionId], to| {
                asked.push((ids.to_vec(), to));
                match to {
                    to if to == three || stuck && to == two => refused(),
                    _ => Ok(()),
                }
            };
            states.toggle(&ids, three, switch, |()| true).unwrap_err();
            let back = [
                (vec![ids[0]], Wanted::Off),
                (vec![ids[1]], ON),
                (vec![ids[2]], two),
            ];
            assert_eq!(asked[0], (ids.to_vec(), three));
            assert_eq!(asked[1..], back);
            assert_eq!(states.functions_on(), 2);
            assert!(states.recorded(ids[0]).is_none());
            let left = if stuck { &ids[2..] } else { &[] };
            assert_eq!(states.changing(ids[2..].to_vec(), two), left);
        }
    }

    #[test]
    fn an_unsure_function_counts_as_on_and_can_be_switched_either_way() {
        for to in [ON, Wanted::Off] {
            let states = States::new(1);
            states
                .toggle(&IDS, ON, |_, _| refused(), |()| true)
                .unwrap_err();
            assert_eq!(states.functions_on(), 1);
            assert_eq!(states.changing(IDS.to_vec(), to), IDS);
            states.toggle(&IDS, to, |_, _| Ok(()), |()| true).unwrap();
            assert_eq!(states.recorded(FunctionId(0)).is_some(), to == ON);
        }
    }

    #[test]
    fn a_sled_that_another_tracer_patched_is_tried_again() {
        let states = States::new(1);
        let again = |to| states.changing(IDS.to_vec(), to);
        for (to, all, left) in [
            (ON, false, &IDS[..]),
            (ON, true, &[]),
            (Wanted::Off, false, &[]),
        ] {
            states.toggle(&IDS, to, |_, _| Ok(()), |()| all).unwrap();
            assert_eq!(again(to), left, "{to:?} {all}");
            assert_eq!(states.recorded(FunctionId(0)).is_some(), to == ON);
        }
    }

    #[test]
    fn an_unsure_function_has_the_requested_values() {
        let two = Capture::NONE.with_arguments(2).unwrap();
        let states = States::new(1);
        let of = || {
            (
                states.recorded(FunctionId(0)),
                states.functions_with_values(),
            )
        };
        // Another tracer has patched a part of it.
        states
            .toggle(&IDS, Wanted::On(two), |_, _| Ok(()), |()| false)
            .unwrap();
        assert_eq!(of(), (Some(two), 1));
        let again = states.changing(IDS.to_vec(), Wanted::On(two));
        assert_eq!(again, IDS);
        // It can neither be switched off nor switched to other values.
        for to in [Wanted::Off, ON] {
            states
                .toggle(&IDS, to, |_, _| refused(), |()| true)
                .unwrap_err();
            assert_eq!(of(), (Some(two), 1), "{to:?}");
        }
        states
            .toggle(&IDS, Wanted::Off, |_, _| Ok(()), |()| true)
            .unwrap();
        assert_eq!(of(), (None, 0));
    }

    #[test]
    fn a_function_with_other_requested_values_changes() {
        let states = States::new(2);
        let all = [FunctionId(0), FunctionId(1)];
        let two = Wanted::On(Capture::NONE.with_arguments(2).unwrap());
        states.toggle(&all, two, |_, _| Ok(()), |()| true).unwrap();
        assert_eq!(states.functions_with_values(), 2);
        assert_eq!(states.changing(all.to_vec(), two), []);
        assert_eq!(states.changing(all.to_vec(), ON), all);
        states.toggle(&IDS, ON, |_, _| Ok(()), |()| true).unwrap();
        assert_eq!(
            (states.functions_on(), states.functions_with_values()),
            (2, 1)
        );
        assert_eq!(states.recorded(FunctionId(0)), Some(Capture::NONE));
        let arguments = states.recorded(FunctionId(1)).map(Capture::arguments);
        assert_eq!(arguments, Some(2));
        states.forget(all.into_iter());
        assert_eq!(
            (states.functions_on(), states.functions_with_values()),
            (0, 0)
        );
    }

    #[test]
    fn an_unloaded_function_is_not_on() {
        let states = States::new(1);
        states.grow(3);
        let ids = [FunctionId(0), FunctionId(2)];
        states.toggle(&ids, ON, |_, _| Ok(()), |()| true).unwrap();
        assert_eq!(states.functions_on(), 2);
        states.forget([FunctionId(1), FunctionId(2)].into_iter());
        assert_eq!(states.functions_on(), 1);
        assert!(states.recorded(FunctionId(2)).is_none());
        assert_eq!(states.off(&ids), ids[1..]);
    }
}
