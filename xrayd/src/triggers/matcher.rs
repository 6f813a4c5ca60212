//! One trigger in one process.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use xray_trace::{
    event_format::{EventCondition, EventsOf, RecordedData, TypeOfEvent},
    instr_map::{Candidate, CompiledSelection},
    model::{FunctionId, Ticks},
};

use super::{
    EventNeed,
    condition::{CallTime, Condition, DeathWanted},
    limiter::{EventOrigin, FiringLimiter, Match, Value},
    rate::Rate,
};
use crate::{
    lock::lock,
    refusal::Result,
    sys::ticks_now,
    target::{Ending, Functions, has_type_name},
};

/// Events of types without a name that are remembered until they have one.
const MOST_WAITING: usize = 64;

/// The shortest time of calls that the program notes. A thread has room for some hundred notes
/// between two looks at them, which are up to 20 ms apart.
const SHORTEST_NOTED: Duration = Duration::from_millis(1);

/// What is watched, and how it is judged.
#[derive(Debug)]
pub(crate) struct TriggerMatcher {
    checks: Vec<(Check, Option<CompiledSelection>)>,
    /// By the bit of the condition: those that are met by a call's end, its begin, both by how many
    /// there are.
    durations: u8,
    calls: u8,
    rates: u8,
    functions: Arc<Functions>,
    /// The least ticks of calls that the program notes for a trigger.
    shortest_noted: u64,
    /// Nothing that happened before counts.
    since: Ticks,
    key: usize,
    limiter: Arc<FiringLimiter>,
    marks: Mutex<Arc<ConditionMask>>,
    /// It was told that the process has ended.
    over: AtomicBool,
}

/// Which conditions are about which functions: a bit for each condition, by function. Functions
/// that have come since are not in it.
#[derive(Debug, Default)]
pub(crate) struct ConditionMask(Vec<u8>);

#[derive(Debug)]
enum Check {
    /// The measured time, and the shortest one in ticks.
    Duration(CallTime, u64),
    Call,
    /// The numbers serve events that are wanted by name.
    Event(Box<(EventCondition, Mutex<Numbers>)>),
    Rate(Box<Mutex<Rate>>),
    Death(DeathWanted),
}

/// Numbers of event types.
#[derive(Debug, Default)]
struct Numbers {
    /// Those that have names: whether one of them is the name.
    named: HashMap<u16, bool>,
    /// The first event of a type that has none so far, and whose data meets the condition.
    waiting: HashMap<u16, Match>,
}

// === impl TriggerMatcher ===

impl TriggerMatcher {
    /// Of the process with this number.
    pub(crate) fn new(
        conditions: &[Condition],
        (key, limiter): (usize, Arc<FiringLimiter>),
        functions: Arc<Functions>,
        (since, frequency): (Ticks, u64),
    ) -> Result<Self> {
        let mut checks = Vec::with_capacity(conditions.len());
        let (mut durations, mut calls, mut rates) = (0, 0, 0);
        for (bit, condition) in bits().zip(conditions) {
            let check = match condition {
                Condition::Duration { time, at_least, .. } => {
                    durations |= bit;
                    Check::Duration(*time, at_least_ticks(*at_least, frequency))
                }
                Condition::Call(_) => {
                    calls |= bit;
                    Check::Call
                }
                Condition::Rate { at_least, .. } => {
                    rates |= bit;
                    Check::Rate(Box::new(Mutex::new(Rate::new(*at_least, frequency))))
                }
                Condition::Event(wanted) => {
                    Check::Event(Box::new((wanted.clone(), Mutex::default())))
                }
                Condition::Death(wanted) => Check::Death(*wanted),
            };
            checks.push((check, condition.compile()?));
        }
        let armed = Self {
            checks,
            durations,
            calls,
            rates,
            functions,
            shortest_noted: at_least_ticks(SHORTEST_NOTED, frequency),
            since,
            key,
            limiter,
            marks: Mutex::default(),
            over: AtomicBool::new(false),
        };
        armed.marks();
        Ok(armed)
    }

    /// What it has to be shown.
    pub(crate) fn need(&self) -> EventNeed {
        let needs = self.checks.iter().map(|(check, _)| match check {
            Check::Death(_) => EventNeed::Nothing,
            Check::Duration(_, least) if *least >= self.shortest_noted => {
                EventNeed::LongCalls(*least)
            }
            Check::Duration(..) | Check::Call | Check::Event(_) | Check::Rate(_) => {
                EventNeed::Events
            }
        });
        needs.fold(EventNeed::Nothing, EventNeed::and)
    }

    /// So many calls that may meet a condition were not recorded.
    pub(crate) fn miss(&self, calls: u64) {
        self.limiter.count_unjudged(calls);
    }

    /// Which functions are watched, those that have come meanwhile among them.
    pub(crate) fn marks(&self) -> Arc<ConditionMask> {
        let mut marks = lock(&self.marks);
        let known = marks.0.len();
        if self.functions.ids() > known {
            let mut grown = marks.0.clone();
            let all = self.functions.modules();
            for loaded in all.iter().filter(|loaded| loaded.first() as usize >= known) {
                let needs_source = self.needs_source();
                self.functions
                    .each_in(loaded, needs_source, |id, candidate| {
                        grown.resize(id.0 as usize + 1, 0);
                        grown[id.0 as usize] = self.bits_of(candidate);
                    });
            }
            *marks = Arc::new(ConditionMask(grown));
        }
        Arc::clone(&marks)
    }

    fn needs_source(&self) -> bool {
        let mut selections = self.checks.iter().filter_map(|(_, of)| of.as_ref());
        selections.any(CompiledSelection::needs_source)
    }

    fn bits_of(&self, candidate: &Candidate<'_>) -> u8 {
        let of = bits().zip(&self.checks);
        let of = of.filter(|(_, (_, of))| of.as_ref().is_some_and(|of| of.matches(candidate)));
        of.fold(0, |all, (bit, _)| all | bit)
    }

    /// How many functions are watched.
    pub(crate) fn watched(&self) -> usize {
        self.marks().0.iter().filter(|bits| **bits != 0).count()
    }

    /// Of these conditions, those that are met when a call ends.
    pub(crate) fn at_exit(&self, bits: u8) -> u8 {
        bits & self.durations
    }

    /// A call of a function with these conditions begins.
    pub(crate) fn enters(&self, bits: u8, place: EventOrigin, at: Ticks) {
        if bits & (self.calls | self.rates) == 0 || at < self.since {
            return;
        }
        for (index, (bit, (check, _))) in bits_of_all(&self.checks) {
            if bits & bit == 0 {
                continue;
            }
            match check {
                Check::Call => self.hit(index, place, (at, at), Value::None),
                Check::Rate(rate) => {
                    let reached = lock(rate).count(at);
                    if let Some(calls) = reached {
                        self.hit(index, place, (at, at), Value::Calls(calls));
                    }
                }
                _ => {}
            }
        }
    }

    /// A call that began at `begun` ends.
    pub(crate) fn exits(&self, bits: u8, place: EventOrigin, (begun, at): (Ticks, Ticks)) {
        if at < self.since {
            return;
        }
        let took = at.0.saturating_sub(begun.0);
        for (index, (bit, (check, _))) in bits_of_all(&self.checks) {
            if let Check::Duration(time, least) = check
                && bits & bit != 0
                && took >= *least
            {
                match time {
                    CallTime::Duration => {
                        self.hit(index, place, (begun, at), Value::Duration(took));
                    }
                    // Neither is longer than the duration.
                    CallTime::OnCpu | CallTime::OffCpu => {
                        self.judge_later(index, place, (begun, at));
                    }
                }
            }
        }
    }

    /// The program emits an event with this data; `number` is the type of a typed event.
    pub(crate) fn user_event(
        &self,
        number: Option<u16>,
        data: RecordedData<'_>,
        place: EventOrigin,
        at: Ticks,
    ) {
        if at < self.since {
            return;
        }
        let value = number.map_or(Value::None, Value::Type);
        let of = number.map_or(TypeOfEvent::Custom, |number| {
            TypeOfEvent::Typed(number, None)
        });
        for (index, (check, _)) in self.checks.iter().enumerate() {
            let Check::Event(event) = check else {
                continue;
            };
            let (wanted, numbers) = &**event;
            match (wanted.events(), number) {
                (EventsOf::Name(_), Some(number)) => {
                    let mut numbers = lock(numbers);
                    let Numbers { named, waiting } = &mut *numbers;
                    let is_named = named.get(&number).copied();
                    let is_ignored = match is_named {
                        Some(is_named) => !is_named,
                        None => waiting.len() >= MOST_WAITING || waiting.contains_key(&number),
                    };
                    if is_ignored || !wanted.holds_for_data(data) {
                        continue;
                    }
                    match is_named {
                        Some(_) => self.hit(index, place, (at, at), value),
                        None => {
                            waiting.insert(number, self.made(index, place, (at, at), value));
                        }
                    }
                }
                (EventsOf::Custom | EventsOf::Number(_), _) => {
                    if wanted.holds(of, data) {
                        self.hit(index, place, (at, at), value);
                    }
                }
                (EventsOf::Name(_), None) => {}
            }
        }
    }

    /// A number of event types has this name, or these.
    pub(crate) fn named(&self, number: u16, names: &str) {
        for (check, _) in &self.checks {
            let Check::Event(event) = check else {
                continue;
            };
            let (wanted, numbers) = &**event;
            let EventsOf::Name(wanted) = wanted.events() else {
                continue;
            };
            let is_it = has_type_name(names, wanted);
            let mut numbers = lock(numbers);
            numbers.named.insert(number, is_it);
            if let Some(hit) = numbers.waiting.remove(&number)
                && is_it
            {
                self.limiter.pass(|| hit);
            }
        }
    }

    /// The process has ended.
    pub(crate) fn ended(&self, ending: Ending) {
        if self.over.swap(true, Relaxed) {
            return;
        }
        let now = ticks_now();
        for (index, (check, _)) in self.checks.iter().enumerate() {
            if let Check::Death(wanted) = check
                && wanted.is_met_by(ending)
            {
                self.hit(index, EventOrigin::default(), (now, now), Value::None);
            }
        }
    }

    #[cold]
    fn hit(&self, condition: usize, place: EventOrigin, when: (Ticks, Ticks), value: Value) {
        self.limiter
            .pass(|| self.made(condition, place, when, value));
    }

    #[cold]
    fn judge_later(&self, condition: usize, place: EventOrigin, when: (Ticks, Ticks)) {
        let call = self.made(condition, place, when, Value::None);
        self.limiter.judge_later(call);
    }

    fn made(
        &self,
        condition: usize,
        place: EventOrigin,
        (begun, at): (Ticks, Ticks),
        value: Value,
    ) -> Match {
        Match {
            condition: Some(condition),
            place: EventOrigin {
                key: self.key,
                ..place
            },
            begun,
            at,
            value,
        }
    }
}

#[cfg(test)]
impl TriggerMatcher {
    /// Every call of one of the first so many functions that took so many ticks is a hit.
    pub(crate) fn for_durations(functions: usize, at_least: u64) -> (Arc<Self>, super::Matches) {
        let (limiter, hits, _long_calls) = super::limiter(super::MOST_FIRINGS);
        let matcher = Self {
            checks: vec![(Check::Duration(CallTime::Duration, at_least), None)],
            durations: 1,
            calls: 0,
            rates: 0,
            functions: Arc::new(Functions::new(crate::Pid::this())),
            shortest_noted: 0,
            since: Ticks(0),
            key: 0,
            limiter: Arc::new(limiter),
            marks: Mutex::new(Arc::new(ConditionMask(vec![1; functions]))),
            over: AtomicBool::new(false),
        };
        (Arc::new(matcher), hits)
    }
}

// === impl ConditionMask ===

impl ConditionMask {
    /// The conditions of a function; `None` if it has come since.
    #[inline]
    pub(crate) fn of(&self, function: FunctionId) -> Option<u8> {
        self.0.get(function.0 as usize).copied()
    }
}

/// So much time in ticks, rounded up: nothing that was shorter took so long.
fn at_least_ticks(time: Duration, frequency: u64) -> u64 {
    let ticks = (u128::from(frequency) * time.as_nanos()).div_ceil(1_000_000_000);
    u64::try_from(ticks).unwrap_or(u64::MAX)
}

/// The bits of conditions, by index.
fn bits() -> impl Iterator<Item = u8> {
    (0..u8::BITS).map(|bit| 1 << bit)
}

fn bits_of_all<T>(checks: &[T]) -> impl Iterator<Item = (usize, (u8, &T))> {
    bits().zip(checks).enumerate()
}

#[cfg(test)]
mod tests {
    use xray_trace::event_format::{FieldComparison, Literal, Relation};

    use super::*;
    use crate::triggers::{MOST_FIRINGS, Matches, limiter};

    /// A trigger for events with this name whose first byte is greater than 100, and what it lets
    /// through.
    fn for_orders() -> (TriggerMatcher, Matches) {
        let format = "price:u8".parse().unwrap();
        let number = Literal::Integer(100);
        let comparison = FieldComparison::new(format, "price", Relation::Greater, number).unwrap();
        let order = EventCondition::of_type(EventsOf::Name("order".to_owned()));
        let (limiter, matches, _) = limiter(MOST_FIRINGS);
        let matcher = TriggerMatcher::new(
            &[Condition::Event(order.with_field(comparison))],
            (0, Arc::new(limiter)),
            Arc::new(Functions::new(crate::Pid::this())),
            (Ticks(10), 1_000_000_000),
        );
        (matcher.unwrap(), matches)
    }

    fn times(matches: &mut Matches) -> Vec<u64> {
        std::iter::from_fn(|| matches.next_now())
            .map(|hit| hit.at.0)
            .collect()
    }

    #[test]
    fn the_first_event_that_meets_the_comparison_waits_for_its_name() {
        let (matcher, mut matches) = for_orders();
        let emit = |number, data: &[u8], at| {
            let data = RecordedData::whole(data);
            matcher.user_event(number, data, EventOrigin::default(), Ticks(at));
        };
        // Before the trigger, custom, too low, without data.
        emit(Some(7), &[200], 9);
        emit(None, &[200], 20);
        emit(Some(7), &[100], 30);
        emit(Some(7), &[], 40);
        emit(Some(7), &[101, 1], 50);
        emit(Some(7), &[102], 60);
        emit(Some(8), &[200], 70);
        assert_eq!(times(&mut matches), [0; 0]);
        matcher.named(8, "trade");
        matcher.named(7, "order");
        assert_eq!(times(&mut matches), [50]);
        emit(Some(7), &[100], 80);
        emit(Some(8), &[200], 90);
        emit(Some(7), &[255], 100);
        assert_eq!(times(&mut matches), [100]);
    }
}
