//! Conversion between the messages of a record and types of the engine.

use std::{num::NonZeroU64, ops::Range, time::Duration};

use xray_trace::{
    instr_map::{Rule, Selection},
    model::Birth,
};
use xrayd_proto::v1;

use super::message;
use crate::{
    control::{Choices, ChosenModule},
    pid::Pid,
    process::{Follow, GroupRecord, SessionRecord},
    refusal::Refusal,
    rpc::convert,
    target::{Caller, Credentials, Namespace, Rights, Sleds},
    types::{Capture, Kinship, LeaseId, Settings, Switch, ToggleTo, Wanted},
};

/// The reason why a message is no record of a session.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoRecord {
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("{0} is invalid")]
    Invalid(&'static str),
    #[error("{what} is invalid: {refusal}")]
    Refused {
        what: &'static str,
        refusal: Refusal,
    },
}

type Result<T> = std::result::Result<T, NoRecord>;

// --- to messages

pub(super) fn session(record: &SessionRecord) -> message::Session {
    let SessionRecord {
        pid,
        start_time,
        session,
        credentials: its_credentials,
        has_ended,
        caller: its_caller,
        ring_bytes,
        max_threads,
        sleds,
        by_policy,
        group: its_group,
        choices: Choices {
            settings,
            rules,
            modules,
        },
    } = record;
    message::Session {
        pid: pid.as_u32(),
        start_time: *start_time,
        credentials: Some(credentials(its_credentials)),
        caller: its_caller.as_ref().and_then(caller),
        ring_bytes: *ring_bytes,
        max_threads: *max_threads,
        await_sleds: *sleds == Sleds::Awaited,
        by_policy: *by_policy,
        group: Some(group(its_group)),
        settings: Some(convert::settings(settings.clone())),
        rules: rules.iter().map(rule).collect(),
        modules: modules.iter().map(module).collect(),
        session: *session,
        has_ended: *has_ended,
    }
}

fn credentials(credentials: &Credentials) -> message::Credentials {
    let Credentials {
        user,
        ids,
        permitted,
        namespace,
        dumpable,
    } = *credentials;
    message::Credentials {
        user,
        ids: ids.map(|(user, group)| message::Ids { user, group }),
        permitted,
        namespace: match namespace {
            Namespace::Own => Some(message::Namespace { owner: None }),
            Namespace::Below { owner } => Some(message::Namespace { owner: Some(owner) }),
            Namespace::Elsewhere => None,
        },
        dumpable,
    }
}

fn caller(caller: &Caller) -> Option<message::Caller> {
    let Rights {
        group,
        permitted,
        effective,
        start_time,
    } = caller.rights().or_else(|| {
        // The rights by itself are not needed.
        caller.acts_for().map(|_| Rights::default())
    })?;
    Some(message::Caller {
        acts_for: caller.acts_for(),
        uid: caller.uid,
        pid: caller.pid,
        group,
        permitted,
        effective,
        start_time,
    })
}

fn group(group: &GroupRecord) -> message::Group {
    let GroupRecord {
        root,
        root_start_time,
        follow,
        caller: its_caller,
        kinship,
    } = group;
    message::Group {
        root: root.as_u32(),
        root_start_time: *root_start_time,
        follow: match follow {
            Follow::None => v1::Follow::Unspecified,
            Follow::Fork => v1::Follow::Fork,
            Follow::Exec => v1::Follow::Exec,
            Follow::All => v1::Follow::All,
        }
        .into(),
        caller: its_caller.as_ref().and_then(caller),
        kinship: kinship.map(convert::kinship),
    }
}

fn rule((chosen, to): &(Selection, ToggleTo)) -> message::Rule {
    message::Rule {
        selection: Some(selection(chosen)),
        on: match to.wanted {
            Wanted::On(capture) => Some(convert::capture(capture)),
            Wanted::Off => None,
        },
        policy: match to.lease {
            Some(LeaseId::Policy(number)) => number.get(),
            Some(LeaseId::Client(_)) | None => 0,
        },
    }
}

fn selection(selection: &Selection) -> v1::Selection {
    use v1::rule::Rule as Wire;
    let rule = |rule: &Rule| v1::Rule {
        rule: Some(match rule.clone() {
            Rule::Function(name) => Wire::Function(name),
            Rule::Glob(glob) => Wire::Glob(glob),
            Rule::Regex(regex) => Wire::Regex(regex),
            Rule::Module(module) => Wire::Module(module),
            Rule::Source(source) => Wire::Source(source),
            Rule::Id(id) => Wire::Id(id),
            Rule::AlwaysInstrumented => Wire::AlwaysInstrumented(true),
            Rule::SmallerThan(bytes) => Wire::SmallerThan(bytes),
            Rule::All => Wire::All(true),
        }),
    };
    v1::Selection {
        include: selection.include.iter().map(rule).collect(),
        exclude: selection.exclude.iter().map(rule).collect(),
    }
}

fn module(module: &ChosenModule) -> message::Module {
    let ChosenModule {
        path,
        bias,
        functions,
        on,
    } = module;
    let mut runs: Vec<message::On> = Vec::new();
    let mut last: Option<Capture> = None;
    let mut end = 0;
    for (range, its) in on {
        if last.replace(*its) != Some(*its) {
            runs.push(message::On {
                capture: Some(convert::capture(*its)),
                ranges: Vec::new(),
            });
        }
        if let Some(run) = runs.last_mut() {
            run.ranges
                .extend([range.start - end, range.end - range.start]);
        }
        end = range.end;
    }
    message::Module {
        path: path.clone(),
        bias: *bias,
        functions: *functions,
        on: runs,
    }
}

// --- from messages

pub(super) fn record(session: message::Session) -> Result<SessionRecord> {
    let message::Session {
        pid: its_pid,
        start_time,
        caller: its_caller,
        ring_bytes,
        max_threads,
        await_sleds,
        group: its_group,
        settings,
        rules,
        modules,
        session,
        has_ended,
        credentials: its_credentials,
        by_policy,
    } = session;
    let its_credentials = its_credentials.ok_or(NoRecord::Missing("the credentials"))?;
    let settings = settings.ok_or(NoRecord::Missing("the settings"))?;
    let settings = convert::settings_update(settings).map_err(refused("the settings"))?;
    let settings = settings.applied_to(&Settings::default());
    settings.check().map_err(refused("the settings"))?;
    Ok(SessionRecord {
        pid: pid(its_pid)?,
        start_time,
        session,
        credentials: credentials_of(its_credentials),
        has_ended,
        caller: its_caller.map(caller_of),
        ring_bytes,
        max_threads,
        sleds: match await_sleds {
            true => Sleds::Awaited,
            false => Sleds::Needed,
        },
        by_policy,
        group: group_of(its_group.ok_or(NoRecord::Missing("the group"))?)?,
        choices: Choices {
            settings,
            rules: rules.into_iter().map(rule_of).collect::<Result<_>>()?,
            modules: modules.into_iter().map(module_of).collect::<Result<_>>()?,
        },
    })
}

fn pid(number: u32) -> Result<Pid> {
    Pid::try_from(number).map_err(|_| NoRecord::Invalid("the process id"))
}

fn refused(what: &'static str) -> impl Fn(Refusal) -> NoRecord {
    move |refusal| NoRecord::Refused { what, refusal }
}

fn caller_of(caller: message::Caller) -> Caller {
    let message::Caller {
        uid,
        pid,
        group,
        permitted,
        effective,
        start_time,
        acts_for,
    } = caller;
    let rights = Rights {
        group,
        permitted,
        effective,
        start_time,
    };
    let caller = Caller::peer(uid, pid, Ok(rights));
    acts_for.map_or(caller, |user| caller.acting_for(user))
}

fn credentials_of(credentials: message::Credentials) -> Credentials {
    let message::Credentials {
        user,
        ids,
        permitted,
        namespace,
        dumpable,
    } = credentials;
    Credentials {
        user,
        ids: ids.map(|message::Ids { user, group }| (user, group)),
        permitted,
        namespace: match namespace.map(|namespace| namespace.owner) {
            Some(None) => Namespace::Own,
            Some(Some(owner)) => Namespace::Below { owner },
            None => Namespace::Elsewhere,
        },
        dumpable,
    }
}

fn group_of(group: message::Group) -> Result<GroupRecord> {
    let follow = match v1::Follow::try_from(group.follow) {
        Ok(v1::Follow::Unspecified) => Follow::None,
        Ok(v1::Follow::Fork) => Follow::Fork,
        Ok(v1::Follow::Exec) => Follow::Exec,
        Ok(v1::Follow::All) => Follow::All,
        Err(_) => return Err(NoRecord::Invalid("what is followed")),
    };
    let kinship = group.kinship.map(|kinship| {
        Ok(Kinship {
            root: pid(kinship.root)?,
            parent: pid(kinship.parent)?,
            by: match kinship.by_exec {
                true => Birth::Exec,
                false => Birth::Fork,
            },
            within: Duration::from_nanos(kinship.within_ns),
        })
    });
    Ok(GroupRecord {
        root: pid(group.root)?,
        root_start_time: group.root_start_time,
        follow,
        caller: group.caller.map(caller_of),
        kinship: kinship.transpose()?,
    })
}

fn rule_of(rule: message::Rule) -> Result<(Selection, ToggleTo)> {
    let lease = NonZeroU64::new(rule.policy).map(LeaseId::Policy);
    let selection = rule.selection.ok_or(NoRecord::Missing("a selection"))?;
    let selection = convert::selection(selection).map_err(refused("a selection"))?;
    let wanted = match rule.on {
        None => Wanted::Off,
        Some(capture) => Wanted::On(capture_of(capture)?),
    };
    Ok((selection, ToggleTo { wanted, lease }))
}

fn capture_of(capture: v1::Capture) -> Result<Capture> {
    match convert::wanted(Switch::On, Some(capture)) {
        Ok(Wanted::On(capture)) => Ok(capture),
        Ok(Wanted::Off) => Err(NoRecord::Invalid("what is recorded")),
        Err(refusal) => Err(refused("what is recorded")(refusal)),
    }
}

fn module_of(module: message::Module) -> Result<ChosenModule> {
    let message::Module {
        path,
        bias,
        functions,
        on: runs,
    } = module;
    let invalid = || NoRecord::Invalid("a range of functions");
    let mut on: Vec<(Range<u32>, Capture)> = Vec::new();
    let mut end = 0u32;
    for message::On { capture, ranges } in runs {
        let capture = capture_of(capture.ok_or(NoRecord::Missing("what is recorded"))?)?;
        let (pairs, rest) = ranges.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(invalid());
        }
        for [gap, length] in pairs {
            let start = end.checked_add(*gap).ok_or_else(invalid)?;
            end = start.checked_add(*length).ok_or_else(invalid)?;
            if end > functions {
                return Err(invalid());
            }
            on.push((start..end, capture));
        }
    }
    Ok(ChosenModule {
        path,
        bias,
        functions,
        on,
    })
}
