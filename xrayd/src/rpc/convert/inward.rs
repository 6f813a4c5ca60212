//! Conversion of requests to types of the engine. Values that only a session can check are passed
//! on.

use std::{
    num::NonZeroU64,
    sync::Arc,
    time::{Duration, SystemTime},
};

use xray_trace::{
    instr_map::{Candidate, CompiledSelection, Rule, Selection},
    model::Ticks,
};
use xrayd_proto::v1;

use crate::{
    control::Patterns,
    process::{AttachOptions, Follow, Toggle},
    refusal::{Reason, Refusal},
    store::{Position, StreamBegin},
    sys::{ticks_in, ticks_now},
    target::Sleds,
    types::Capture,
    types::{
        Budget, CallFilter, Duty, Filter, FunctionRow, LeaseId, Mode, Overhead, Run,
        SettingsUpdate, Switch, ToggleTo, Wanted, Window,
    },
};

/// The selection of a request that needs one.
fn required_selection(selection: Option<v1::Selection>) -> Result<Selection, Refusal> {
    selection
        .ok_or_else(|| bad_selection("the request has no selection"))
        .and_then(rules)
}

/// Converts a request to switch functions. `lease` is 0 if there is no lease. `compile` compiles
/// the selection for the caller.
pub(crate) fn toggle(
    selection: Option<v1::Selection>,
    to: Wanted,
    lease: u64,
    run: Run,
    compile: impl FnOnce(&Selection) -> Result<Arc<Patterns>, Refusal>,
) -> Result<Toggle, Refusal> {
    let compiled = |selection| compile(&required_selection(selection)?);
    let lease = NonZeroU64::new(lease).map(LeaseId::Client);
    match (lease, to) {
        (None, _) | (Some(_), Wanted::On(_)) => {
            let to = ToggleTo { wanted: to, lease };
            Ok(Toggle::Functions(compiled(selection)?, to, run))
        }
        (Some(_), Wanted::Off) if selection.is_some() => Err(bad_selection(
            "a lease ends as a whole: the request must not select functions",
        )),
        (Some(_), Wanted::Off) if run == Run::Dry => {
            Err(bad_selection("the end of a lease has no dry run"))
        }
        (Some(from), Wanted::Off) => Ok(Toggle::Release(from)),
    }
}

/// Where a resumable stream begins.
pub(crate) fn stream_begin(after: &[u8], since_ns: u64) -> Result<StreamBegin, Refusal> {
    if !after.is_empty() {
        let position = Position::from_bytes(after).ok_or_else(|| {
            let message =
                "the stream cannot begin after these bytes, which are no position of a trace";
            Refusal::new(Reason::Limit, message)
        })?;
        return Ok(StreamBegin::After(position));
    }
    if since_ns == 0 {
        return Ok(StreamBegin::Now);
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let ago = now
        .unwrap_or_default()
        .saturating_sub(Duration::from_nanos(since_ns));
    let ago = ticks_in(ago)
        .map_err(|error| Refusal::new(Reason::Io, format!("cannot read the clock: {error}")))?;
    Ok(StreamBegin::Since(Ticks(ticks_now().0.saturating_sub(ago))))
}

/// The longest time for which a thread may wait in its full ring.
const MOST_WAIT: Duration = Duration::from_millis(100);

/// The ticks for which threads wait in their full rings.
pub(crate) fn wait_ticks(wait_ns: u64) -> Result<u64, Refusal> {
    let wait = Duration::from_nanos(wait_ns);
    match wait {
        Duration::ZERO => Ok(0),
        wait if wait > MOST_WAIT => Err(Refusal::new(
            Reason::Limit,
            format!("threads wait {wait:?} for room in their rings; the most is {MOST_WAIT:?}"),
        )),
        // At least one, for 0 is no wait.
        wait => ticks_in(wait)
            .map(|ticks| ticks.max(1))
            .map_err(|error| Refusal::new(Reason::Io, format!("cannot read the clock: {error}"))),
    }
}

/// The state that a request wants for the functions of its selection.
pub(crate) fn wanted(switch: Switch, capture: Option<v1::Capture>) -> Result<Wanted, Refusal> {
    let refused = |message: String| Err(Refusal::new(Reason::Limit, message));
    match (switch, capture) {
        (switch, None) => Ok(switch.into()),
        (Switch::Off, Some(_)) => refused(
            "a request that switches functions off must not name values to record".to_owned(),
        ),
        (Switch::On, Some(v1::Capture { arguments, result })) => {
            let Some(capture) = Capture::NONE.with_arguments(arguments) else {
                let most = Capture::MOST_ARGUMENTS;
                return refused(format!(
                    "cannot record {arguments} arguments: at most {most} arguments are in registers"
                ));
            };
            Ok(Wanted::On(if result {
                capture.with_result()
            } else {
                capture
            }))
        }
    }
}

/// A selection with at least one rule to include and no invalid patterns.
pub(crate) fn selection(selection: v1::Selection) -> Result<Selection, Refusal> {
    let selection = rules(selection)?;
    // Invalid patterns are refused here, before any process is looked at.
    compile(&selection)?;
    Ok(selection)
}

/// A selection with at least one rule to include. Its patterns are unchecked.
fn rules(selection: v1::Selection) -> Result<Selection, Refusal> {
    let v1::Selection { include, exclude } = selection;
    if include.is_empty() {
        return Err(bad_selection(
            "the selection has no rule that includes functions",
        ));
    }
    let rules = |rules: Vec<v1::Rule>| rules.into_iter().map(rule).collect::<Result<_, _>>();
    Ok(Selection {
        include: rules(include)?,
        exclude: rules(exclude)?,
    })
}

fn rule(rule: v1::Rule) -> Result<Rule, Refusal> {
    use v1::rule::Rule as Wire;
    let v1::Rule { rule } = rule;
    Ok(
        match rule.ok_or_else(|| bad_selection("a rule of the selection is empty"))? {
            Wire::Function(name) => Rule::Function(name),
            Wire::Glob(glob) => Rule::Glob(glob),
            Wire::Regex(regex) => Rule::Regex(regex),
            Wire::Module(module) => Rule::Module(module),
            Wire::Source(source) => Rule::Source(source),
            Wire::Id(id) => Rule::Id(id),
            Wire::SmallerThan(bytes) => Rule::SmallerThan(bytes),
            Wire::AlwaysInstrumented(true) => Rule::AlwaysInstrumented,
            Wire::All(true) => Rule::All,
            Wire::All(false) | Wire::AlwaysInstrumented(false) => {
                return Err(bad_selection(
                    "a rule of the selection has `all` or `always_instrumented` set to false",
                ));
            }
        },
    )
}

fn compile(selection: &Selection) -> Result<CompiledSelection, Refusal> {
    CompiledSelection::new(selection).map_err(|error| bad_selection(&error.to_string()))
}

fn bad_selection(problem: &str) -> Refusal {
    Refusal::new(Reason::Selection, problem)
}

/// The rows that a selection matches.
pub(crate) fn matching(
    rows: Vec<FunctionRow>,
    selection: &Selection,
) -> Result<Vec<FunctionRow>, Refusal> {
    let selection = compile(selection)?;
    let candidate = |row: &FunctionRow| {
        selection.matches(&Candidate {
            id: row.id.0,
            module: &row.module,
            symbol: row.symbol.as_deref(),
            name: &row.name,
            source: row.source.as_ref().map(|source| source.file.as_str()),
            size: row.size,
            always_instrumented: row.always_instrumented,
        })
    };
    Ok(rows.into_iter().filter(candidate).collect())
}

/// Converts a filter. The session checks it.
fn filter(filter: v1::Filter) -> Filter {
    let v1::Filter {
        min_duration_ns,
        max_depth,
        one_in,
        inside,
        threads,
        modules,
        from_wall_ns,
        until_wall_ns,
    } = filter;
    Filter {
        modules,
        window: Window {
            from_wall_ns,
            until_wall_ns: match until_wall_ns {
                0 => u64::MAX,
                until => until,
            },
        },
        calls: CallFilter {
            shortest: Duration::from_nanos(min_duration_ns),
            max_depth,
            one_in,
            inside,
            threads,
        },
    }
}

/// Converts a limit on the cost of tracing. The session checks the ranges.
fn budget(budget: v1::Budget) -> Result<Budget, Refusal> {
    let v1::Budget {
        max_overhead_ppm,
        duty,
        keep,
    } = budget;
    let refused = |message: &str| Err(Refusal::new(Reason::Limit, message.to_owned()));
    match (max_overhead_ppm, duty) {
        (0, _) if !keep.is_empty() => refused("only a budget keeps functions from suppression"),
        (0, None) => Ok(Budget::None),
        (ppm, None) => Ok(Budget::Overhead(Overhead { ppm, keep })),
        (0, Some(v1::DutyCycle { on_ns, every_ns })) => Ok(Budget::Duty(Duty {
            on: Duration::from_nanos(on_ns),
            every: Duration::from_nanos(every_ns),
        })),
        (_, Some(_)) => refused("a budget and a duty cycle exclude each other"),
    }
}

/// Converts a change of settings. The session checks the values.
///
/// # Errors
/// A mode that does not exist, or a budget and a duty cycle at the same time.
pub(crate) fn settings_update(settings: v1::Settings) -> Result<SettingsUpdate, Refusal> {
    let v1::Settings {
        mode: number,
        filter: wanted,
        budget: limit,
    } = settings;
    let unknown = |_| Refusal::new(Reason::Limit, format!("there is no mode {number}"));
    Ok(SettingsUpdate {
        mode: mode(v1::Mode::try_from(number).map_err(unknown)?),
        filter: wanted.map(filter),
        budget: limit.map(budget).transpose()?,
    })
}

/// The mode of a request, if it names one.
fn mode(mode: v1::Mode) -> Option<Mode> {
    match mode {
        v1::Mode::Unspecified => None,
        v1::Mode::Flight => Some(Mode::Flight),
        v1::Mode::Stream => Some(Mode::Stream),
        v1::Mode::Profile => Some(Mode::Profile),
        v1::Mode::Count => Some(Mode::Count),
    }
}

/// The options of an attach. Zeros stand for the defaults, and the registry checks the ranges.
///
/// # Errors
/// A budget and a duty cycle at the same time.
pub(crate) fn attach_options(request: v1::AttachRequest) -> Result<AttachOptions, Refusal> {
    let mode = mode(request.mode()).unwrap_or(Mode::Flight);
    let follow = match request.follow() {
        v1::Follow::Unspecified => Follow::None,
        v1::Follow::Fork => Follow::Fork,
        v1::Follow::Exec => Follow::Exec,
        v1::Follow::All => Follow::All,
    };
    let v1::AttachRequest {
        pid: _,
        ring_bytes,
        max_threads,
        start_time,
        follow: _,
        await_sleds,
        mode: _,
        budget: wanted,
    } = request;
    let default = AttachOptions::default();
    Ok(AttachOptions {
        ring_bytes: if ring_bytes == 0 {
            default.ring_bytes
        } else {
            ring_bytes
        },
        max_threads: if max_threads == 0 {
            default.max_threads
        } else {
            max_threads
        },
        start_time: (start_time != 0).then_some(start_time),
        follow,
        sleds: if await_sleds {
            Sleds::Awaited
        } else {
            Sleds::Needed
        },
        mode,
        budget: wanted.map_or(Ok(Budget::None), budget)?,
        ..default
    })
}

#[cfg(test)]
mod tests {
    use xray_trace::model::FunctionId;

    use crate::process::{Registry, RegistryConfig};

    use super::*;

    fn rules(rules: &[v1::rule::Rule]) -> Vec<v1::Rule> {
        rules
            .iter()
            .map(|rule| v1::Rule {
                rule: Some(rule.clone()),
            })
            .collect()
    }

    fn check_bad(selection: v1::Selection, expected: &str) {
        let refusal = super::selection(selection).unwrap_err();
        assert_eq!(refusal.reason, Reason::Selection);
        assert!(refusal.message.contains(expected), "{}", refusal.message);
    }

    #[test]
    fn every_kind_of_rule_comes_in() {
        use v1::rule::Rule as Wire;
        let text = |text: &str| text.to_owned();
        let include = rules(&[
            Wire::Function(text("f")),
            Wire::Glob(text("ns::*")),
            Wire::Regex(text("^a")),
            Wire::Module(text("libx.so")),
            Wire::Source(text("src/*")),
            Wire::Id(7),
        ]);
        let exclude = rules(&[Wire::All(true)]);
        let selection = selection(v1::Selection { include, exclude }).unwrap();
        assert_eq!(
            selection.include,
            [
                Rule::Function(text("f")),
                Rule::Glob(text("ns::*")),
                Rule::Regex(text("^a")),
                Rule::Module(text("libx.so")),
                Rule::Source(text("src/*")),
                Rule::Id(7),
            ]
        );
        assert_eq!(selection.exclude, [Rule::All]);
    }

    #[test]
    fn a_selection_that_means_nothing_is_refused() {
        use v1::rule::Rule as Wire;
        let of = |include| v1::Selection {
            include,
            exclude: Vec::new(),
        };
        check_bad(of(Vec::new()), "no rule that includes");
        check_bad(of(vec![v1::Rule { rule: None }]), "is empty");
        check_bad(of(rules(&[Wire::All(false)])), "set to false");
        check_bad(of(rules(&[Wire::Regex("(".to_owned())])), "(");
        check_bad(of(rules(&[Wire::Glob("[".to_owned())])), "[");
        assert_eq!(
            required_selection(None).unwrap_err().reason,
            Reason::Selection
        );
    }

    #[test]
    fn zeros_in_an_attach_request_mean_the_defaults() {
        let default = AttachOptions::default();
        let options = attach_options(v1::AttachRequest::default()).unwrap();
        assert_eq!(
            (options.ring_bytes, options.max_threads, options.start_time),
            (default.ring_bytes, default.max_threads, None)
        );
        assert_eq!(options.follow, Follow::None);
        let request = v1::AttachRequest {
            pid: 1,
            ring_bytes: 1 << 16,
            max_threads: 3,
            start_time: 9,
            follow: v1::Follow::All.into(),
            await_sleds: true,
            mode: v1::Mode::Stream.into(),
            budget: Some(v1::Budget {
                max_overhead_ppm: 20_000,
                ..v1::Budget::default()
            }),
        };
        assert_eq!(options.mode, Mode::Flight);
        let options = attach_options(request).unwrap();
        assert_eq!(
            (options.ring_bytes, options.max_threads, options.start_time),
            (1 << 16, 3, Some(9))
        );
        assert_eq!(options.follow, Follow::All);
        assert_eq!(options.sleds, Sleds::Awaited);
        assert_eq!(options.mode, Mode::Stream);
        assert_eq!(options.budget, Budget::overhead(20_000));
    }

    #[test]
    fn rows_are_matched_by_the_same_rules_as_a_sessions() {
        let row = |id, name: &str| FunctionRow {
            id: FunctionId(id),
            module: "/usr/bin/demo".to_owned(),
            name: name.to_owned(),
            symbol: None,
            source: None,
            sleds: 2,
            event_sleds: 0,
            enabled: false,
            suppressed: false,
            capture: Capture::NONE,
            calls: 0,
            xray_id: id + 1,
            address: 0,
            size: 0,
            always_instrumented: false,
        };
        let selection = Selection {
            include: vec![Rule::Glob("a*".to_owned())],
            exclude: vec![Rule::Id(1)],
        };
        let rows = matching(vec![row(0, "ab"), row(1, "ac"), row(2, "b")], &selection).unwrap();
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].name, "ab");
    }

    #[test]
    fn a_lease_is_taken_back_as_a_whole_and_at_once() {
        let all = || {
            let include = rules(&[v1::rule::Rule::All(true)]);
            let exclude = Vec::new();
            Some(v1::Selection { include, exclude })
        };
        let on = Wanted::On(Capture::NONE);
        let registry = Registry::new(RegistryConfig::default());
        let compile = |selection: &Selection| registry.compile(None, selection);
        let real = |selection, to, lease| toggle(selection, to, lease, Run::Real, compile);
        for (lease, expected) in [(0, None), (7, NonZeroU64::new(7).map(LeaseId::Client))] {
            let Ok(Toggle::Functions(_, to, _)) = real(all(), on, lease) else {
                panic!("functions are switched");
            };
            assert_eq!((to.wanted, to.lease), (on, expected));
        }
        assert!(matches!(
            real(None, Wanted::Off, 7),
            Ok(Toggle::Release(LeaseId::Client(number))) if number.get() == 7
        ));
        for refused in [
            real(None, on, 7),
            real(None, Wanted::Off, 0),
            real(all(), Wanted::Off, 7),
            toggle(None, Wanted::Off, 7, Run::Dry, compile),
        ] {
            assert_eq!(refused.unwrap_err().reason, Reason::Selection);
        }
    }
}
