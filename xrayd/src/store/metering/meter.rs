//! The calls of chosen functions of one process, added up by function for as long as the session
//! lives.
//!
//! The drain hands over sums by stack, about once a second, and the meter keeps the calls of chosen
//! functions. A reading does not wait for the drain or the controller.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
};

use xray_trace::{
    analysis::{MORE_STACKS, StackSums},
    instr_map::CompiledSelection,
    model::{Clock, ClockAnchor, FunctionId},
};

use super::latencies::Latencies;
use crate::{
    lock::lock,
    sys::now_anchor,
    target::{Functions, Loaded},
};

/// The most bytes of a name in a series. Names of templates have no bound of their own.
const LONGEST_NAME: usize = 512;

/// The choice of functions that all meters of a daemon share.
#[derive(Debug)]
pub(super) struct MeteredFunctions {
    selection: CompiledSelection,
    /// The most functions of living processes that are measured, and the present number.
    most: u32,
    taken: AtomicU32,
    /// Chosen functions that were called and are not measured, because there are too many.
    left_out: AtomicU32,
    /// The time at which measuring began. The rate of the counter is computed from there.
    since: ClockAnchor,
}

/// Names functions.
pub(super) trait Names: std::fmt::Debug + Send + Sync {
    /// The path of a function's module, and the function's readable name.
    fn name(&self, id: FunctionId) -> Option<(String, String)>;
}

/// Measures the calls of one process.
#[derive(Debug)]
pub(crate) struct Meter {
    choice: Arc<MeteredFunctions>,
    names: Arc<dyn Names>,
    /// True if any function is chosen.
    wants: AtomicBool,
    sums: Mutex<Sums>,
}

/// A function and its calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Series {
    /// The file name of its module.
    pub(crate) module: String,
    pub(crate) function: String,
    pub(crate) latencies: Latencies,
}

/// The sums of a meter.
#[derive(Debug, Default)]
struct Sums {
    /// By function id; functions beyond its end are not chosen. Written when modules come, and when
    /// functions are first called.
    places: Vec<SeriesState>,
    series: Vec<Series>,
    /// The series of each name: functions with the same name share one.
    by_name: HashMap<(String, String), u32>,
    /// Calls whose function is not known.
    unassigned: u64,
    /// Chosen functions that were called and have no series.
    left_out: u32,
    /// True if nothing more comes. Then its functions do not count against the limit.
    closed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SeriesState {
    NotChosen,
    /// Not called so far.
    Chosen,
    LeftOut,
    Series(u32),
}

// === impl MeteredFunctions ===

impl MeteredFunctions {
    pub(super) fn new(selection: CompiledSelection, most: u32, since: ClockAnchor) -> Self {
        Self {
            selection,
            most,
            taken: AtomicU32::new(0),
            left_out: AtomicU32::new(0),
            since,
        }
    }

    pub(super) fn most(&self) -> u32 {
        self.most
    }

    pub(super) fn left_out(&self) -> u32 {
        self.left_out.load(Relaxed)
    }

    /// Takes a place below the limit; false if there is none.
    fn take(&self) -> bool {
        let more = |taken: u32| (taken < self.most).then(|| taken + 1);
        self.taken.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    fn is_full(&self) -> bool {
        self.taken.load(Relaxed) >= self.most
    }

    /// Ticks per second.
    fn frequency(&self) -> Option<u64> {
        let now = now_anchor().ok()?;
        Clock::new(vec![self.since, now]).frequency()
    }
}

// === impl Meter ===

impl Meter {
    pub(super) fn new(choice: Arc<MeteredFunctions>, names: Arc<dyn Names>) -> Self {
        Self {
            choice,
            names,
            wants: AtomicBool::new(false),
            sums: Mutex::default(),
        }
    }

    /// True if any function of the process is chosen, so that its calls have to be added up.
    #[inline]
    pub(crate) fn wants(&self) -> bool {
        self.wants.load(Relaxed)
    }

    /// Chooses functions of a new module, before any of them is on.
    pub(crate) fn choose(&self, functions: &Functions, loaded: &Arc<Loaded>) {
        let modules = std::slice::from_ref(loaded);
        self.measure(functions.matching(modules, &self.choice.selection));
    }

    /// Adds functions to the chosen ones.
    fn measure(&self, chosen: Vec<FunctionId>) {
        if chosen.is_empty() {
            return;
        }
        let mut sums = lock(&self.sums);
        for id in chosen {
            let index = id.0 as usize;
            if index >= sums.places.len() {
                sums.places.resize(index + 1, SeriesState::NotChosen);
            }
            // A module that is back has its places already.
            if sums.places[index] == SeriesState::NotChosen {
                sums.places[index] = SeriesState::Chosen;
            }
        }
        self.wants.store(true, Relaxed);
    }

    /// Adds the sums that the drain hands over.
    pub(crate) fn add(&self, stacks: &StackSums) {
        if !self.wants() {
            return;
        }
        let frequency = self.choice.frequency().map(u128::from);
        let ns = |ticks: u64| match frequency {
            Some(frequency) => {
                let ns = u128::from(ticks) * 1_000_000_000 / frequency.max(1);
                u64::try_from(ns).unwrap_or(u64::MAX)
            }
            // Where the rate of the counter is not known, a tick counts as a nanosecond.
            None => ticks,
        };
        let mut sums = lock(&self.sums);
        for (function, calls) in stacks.calls().filter(|(_, calls)| calls.calls > 0) {
            if function == MORE_STACKS {
                sums.unassigned = sums.unassigned.saturating_add(calls.calls);
            } else if let Some(series) = self.series(&mut sums, function) {
                series.latencies.add(calls, ns);
            }
        }
        let too_deep = stacks.missing().too_deep;
        sums.unassigned = sums.unassigned.saturating_add(too_deep);
    }

    /// The series of a function that was called; `None` if it is not measured.
    fn series<'a>(&self, sums: &'a mut Sums, function: FunctionId) -> Option<&'a mut Series> {
        let index = function.0 as usize;
        let place = match *sums.places.get(index)? {
            SeriesState::NotChosen => return None,
            SeriesState::Series(place) => place,
            SeriesState::LeftOut if self.choice.is_full() => return None,
            before @ (SeriesState::Chosen | SeriesState::LeftOut) => {
                let place = self.begin(sums, function);
                let left_out = place.is_none();
                sums.places[index] = place.map_or(SeriesState::LeftOut, SeriesState::Series);
                match (before, left_out) {
                    (SeriesState::LeftOut, false) => {
                        sums.left_out -= 1;
                        self.choice.left_out.fetch_sub(1, Relaxed);
                    }
                    (SeriesState::Chosen, true) => {
                        sums.left_out += 1;
                        self.choice.left_out.fetch_add(1, Relaxed);
                    }
                    _ => {}
                }
                place?
            }
        };
        sums.series.get_mut(place as usize)
    }

    /// The place of a function's series: that of its name, or a new one if there is room.
    fn begin(&self, sums: &mut Sums, function: FunctionId) -> Option<u32> {
        let (path, name) = self.names.name(function)?;
        let module = path.rsplit('/').next().unwrap_or_default();
        let key = (shortened(module), shortened(&name));
        if let Some(place) = sums.by_name.get(&key) {
            return Some(*place);
        }
        let place = u32::try_from(sums.series.len()).ok()?;
        if sums.closed || !self.choice.take() {
            return None;
        }
        let (module, function) = key.clone();
        sums.series.push(Series {
            module,
            function,
            latencies: Latencies::default(),
        });
        sums.by_name.insert(key, place);
        Some(place)
    }

    /// Ends measuring. The numbers stay, but do not count against the limit.
    pub(crate) fn close(&self) {
        let mut sums = lock(&self.sums);
        if std::mem::replace(&mut sums.closed, true) {
            return;
        }
        // There are never more of them than `most`.
        let held = u32::try_from(sums.series.len()).unwrap_or(u32::MAX);
        self.choice.taken.fetch_sub(held, Relaxed);
        self.choice.left_out.fetch_sub(sums.left_out, Relaxed);
        sums.left_out = 0;
    }

    /// The measured series, and the number of calls whose function is not known.
    pub(crate) fn read(&self) -> (Vec<Series>, u64) {
        let sums = lock(&self.sums);
        (sums.series.clone(), sums.unassigned)
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.close();
    }
}

/// The text, cut to [`LONGEST_NAME`] bytes.
fn shortened(text: &str) -> String {
    if text.len() <= LONGEST_NAME {
        return text.to_owned();
    }
    let most = LONGEST_NAME - '…'.len_utf8();
    let end = (0..=most).rev().find(|at| text.is_char_boundary(*at));
    format!("{}…", &text[..end.unwrap_or(0)])
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use xray_trace::{
        analysis::{ProfileBudget, Profiler},
        instr_map::Selection,
        model::Ticks,
    };

    use super::*;

    /// Ids and names, and the number of lookups.
    #[derive(Debug)]
    struct Table(Vec<(&'static str, String)>, AtomicUsize);

    impl Names for Table {
        fn name(&self, id: FunctionId) -> Option<(String, String)> {
            self.1.fetch_add(1, Relaxed);
            let (path, name) = self.0.get(id.0 as usize)?;
            Some(((*path).to_owned(), name.clone()))
        }
    }

    fn choice(most: u32) -> Arc<MeteredFunctions> {
        let since = ClockAnchor {
            ticks: Ticks(0),
            monotonic_ns: 0,
            wall_ns: 0,
        };
        Arc::new(MeteredFunctions::new(
            CompiledSelection::new(&Selection::all()).unwrap(),
            most,
            since,
        ))
    }

    fn meter(choice: &Arc<MeteredFunctions>, names: &[&str]) -> Meter {
        let names = names.iter().map(|name| ("/lib/x.so", (*name).to_owned()));
        let table = Table(names.collect(), AtomicUsize::new(0));
        let count = u32::try_from(table.0.len()).unwrap();
        let meter = Meter::new(Arc::clone(choice), Arc::new(table));
        meter.measure((0..count).map(FunctionId).collect());
        meter
    }

    /// One call of each of these functions, one after the other.
    fn calls(functions: &[u32]) -> StackSums {
        let mut profiler = Profiler::new(ProfileBudget::new(1 << 20));
        for (at, id) in (0_u64..).zip(functions) {
            profiler.enter(FunctionId(*id), at * 10);
            profiler.exit(FunctionId(*id), at * 10 + 5);
        }
        profiler.take()
    }

    /// Names and numbers of calls.
    fn read(meter: &Meter) -> Vec<(String, u64)> {
        let (series, _) = meter.read();
        let row = |series: Series| (series.function, series.latencies.finished());
        series.into_iter().map(row).collect()
    }

    fn rows(rows: &[(&str, u64)]) -> Vec<(String, u64)> {
        let row = |(name, calls): &(&str, u64)| ((*name).to_owned(), *calls);
        rows.iter().map(row).collect()
    }

    #[test]
    fn chosen_functions_are_measured_and_no_others() {
        let meter = meter(&choice(9), &["a", "b"]);
        meter.add(&calls(&[1, 7, 1, MORE_STACKS.0, 8]));
        assert_eq!(read(&meter), rows(&[("b", 2)]));
        assert_eq!(meter.read().1, 1);
        meter.add(&calls(&[1, 0]));
        assert_eq!(read(&meter), rows(&[("b", 3), ("a", 1)]));
        assert_eq!(meter.read().0[0].module, "x.so");
    }

    #[test]
    fn without_chosen_functions_nothing_is_measured() {
        let meter = meter(&choice(9), &[]);
        assert!(!meter.wants());
        meter.add(&calls(&[0, MORE_STACKS.0]));
        assert_eq!(meter.read(), (Vec::new(), 0));
    }

    /// Otherwise there would be two series with the same labels.
    #[test]
    fn functions_of_one_name_are_one_series() {
        let long = "x".repeat(3 * LONGEST_NAME);
        let other = format!("{long}y");
        let meter = meter(&choice(9), &["a", "a", &long, &other]);
        meter.add(&calls(&[0, 1, 2, 3]));
        let read = read(&meter);
        assert_eq!(read.len(), 2);
        assert_eq!(read[0], ("a".to_owned(), 2));
        assert!(
            read[1].0.len() <= LONGEST_NAME && read[1].1 == 2,
            "{read:?}"
        );
    }

    #[test]
    fn text_is_cut_between_characters() {
        for lead in 0..4 {
            let text = format!("{}{}", "x".repeat(lead), "\u{1f980}".repeat(LONGEST_NAME));
            let short = shortened(&text);
            assert!(short.len() <= LONGEST_NAME && short.ends_with("\u{1f980}…"));
        }
    }

    #[test]
    fn no_more_functions_are_measured_than_there_is_room_for_and_the_others_are_counted() {
        let choice = choice(2);
        let (one, other) = (meter(&choice, &["a", "b"]), meter(&choice, &["c", "d"]));
        one.add(&calls(&[0]));
        other.add(&calls(&[0, 1]));
        one.add(&calls(&[1, 0]));
        assert_eq!(read(&one), rows(&[("a", 2)]));
        assert_eq!(read(&other), rows(&[("c", 1)]));
        assert_eq!(choice.left_out(), 2);
        // A process has ended. Its numbers can still be read, and a function that was left out gets
        // its place.
        other.close();
        other.close();
        assert_eq!(read(&other), rows(&[("c", 1)]));
        assert_eq!(choice.left_out(), 1);
        one.add(&calls(&[1]));
        assert_eq!(read(&one), rows(&[("a", 2), ("b", 1)]));
        assert_eq!(choice.left_out(), 0);
        drop((one, other));
        assert_eq!(choice.taken.load(Relaxed), 0);
    }

    /// The drain adds every second, perhaps for months.
    #[test]
    fn a_function_is_asked_for_its_name_once() {
        let choice = choice(1);
        let table = Arc::new(Table(
            vec![("/a", "a".to_owned()), ("/a", "b".to_owned())],
            AtomicUsize::new(0),
        ));
        let names: Arc<dyn Names> = Arc::clone(&table) as Arc<dyn Names>;
        let meter = Meter::new(choice, names);
        meter.measure(vec![FunctionId(0), FunctionId(1)]);
        for _ in 0..5 {
            meter.add(&calls(&[0, 1]));
        }
        assert_eq!(table.1.load(Relaxed), 2);
    }
}
