//! Tests of `audit`.

use serde_json::Value;

use super::*;

/// An audit record in memory.
fn memory() -> (AuditLog, Arc<Mutex<Vec<String>>>) {
    let lines = Arc::<Mutex<Vec<String>>>::default();
    let written = Arc::clone(&lines);
    let log = AuditLog::with_writer(move |line: &str| {
        lock(&written).push(line.to_owned());
        Ok(())
    });
    (log.unwrap(), lines)
}

fn caller(uid: u32) -> Caller {
    Caller::in_process(uid, 77)
}

fn refusal(message: &str) -> Refusal {
    Refusal::new(Reason::Permission, message)
}

fn parsed(lines: &Mutex<Vec<String>>) -> Vec<Value> {
    let lines = lock(lines);
    let parse = |line: &String| {
        assert!(!line.contains(is_hazard), "{line:?}");
        serde_json::from_str(line).unwrap()
    };
    lines.iter().map(parse).collect()
}

#[test]
fn a_record_is_one_line_of_json_whatever_is_in_it() {
    let (log, lines) = memory();
    let forged = "\"x\\\n<6>attached uid=0\u{2028}\u{85}\u{1b}[2K\u{202e}é";
    let call = log.call(caller(1000), Operation::Enable);
    let mut call = call.of(42).with(forged.to_owned());
    call.decide::<()>(&Err(refusal(forged)));
    let mut long = log.call(caller(1000), Operation::Status);
    let pids: Vec<_> = (1..=100)
        .map(|pid| (Pid::try_from(pid).unwrap(), Ok(())))
        .collect();
    long.decide_each(&pids);
    drop(
        log.call(caller(0), Operation::Attach)
            .with("é".repeat(LONGEST_TEXT)),
    );
    log.flush();
    let records = parsed(&lines);
    let [first, second, third] = &records[..] else {
        panic!("{records:#?}");
    };
    assert_eq!(first["what"], forged);
    assert_eq!(first["message"], forged);
    for (key, value) in [
        ("operation", "enable"),
        ("decision", "refused"),
        ("reason", "permission"),
    ] {
        assert_eq!(first[key], value);
    }
    assert_eq!(
        (&first["uid"], &first["caller"]),
        (&1000.into(), &77.into())
    );
    assert_eq!(first["pids"], serde_json::json!([42]));
    assert!(
        first["time"]
            .as_str()
            .is_some_and(|time| time.ends_with('Z')),
        "{first}"
    );
    assert_eq!(
        (&second["decision"], &second["processes"]),
        (&"granted".into(), &100.into())
    );
    assert_eq!(second["pids"].as_array().map(Vec::len), Some(MOST_PIDS));
    assert_eq!(third["decision"], "unfinished");
    assert!(
        third["what"]
            .as_str()
            .is_some_and(|what| what.len() < LONGEST_TEXT + 8)
    );
}

#[test]
fn processes_are_grouped_by_what_was_decided() {
    let (log, lines) = memory();
    let outcome = |pid: u32, outcome| (Pid::try_from(pid).unwrap(), outcome);
    let mut call = log.call(caller(5), Operation::Detach);
    call.decide_each(&[
        outcome(1, Ok(())),
        outcome(2, Err(refusal("no"))),
        outcome(3, Ok(())),
        outcome(4, Err(Refusal::new(Reason::Busy, "later"))),
        outcome(5, Err(refusal("no"))),
    ]);
    // The decision about the whole call adds no record.
    call.decide(&Ok(()));
    drop(call);
    log.flush();
    let found = parsed(&lines)
        .into_iter()
        .map(|record| record["pids"].to_string());
    assert_eq!(found.collect::<Vec<_>>(), ["[1,3]", "[2,5]", "[4]"]);
}

#[test]
fn a_flood_costs_the_flooding_user_alone_and_its_drops_are_recorded() {
    let (log, lines) = memory();
    let flood = 5000;
    for number in 0..flood {
        log.call(caller(1000), Operation::Status).decide(&Ok(()));
        // All users share the queue. The writer keeps up with the records that pass the rates.
        if number % 100 == 0 {
            log.call(caller(1001), Operation::Attach).decide(&Ok(()));
            log.flush();
        }
    }
    log.flush();
    let records = parsed(&lines);
    let of = |uid: u32| {
        let records = records.iter().filter(move |record| record["uid"] == uid);
        let (reported, kept): (Vec<_>, Vec<_>) =
            records.partition(|record| record["dropped"].is_u64());
        let dropped = reported
            .iter()
            .filter_map(|record| record["dropped"].as_u64());
        (kept.len(), dropped.sum::<u64>())
    };
    let (kept, dropped) = of(1000);
    assert_eq!(kept as u64 + dropped, flood);
    // A slow machine refills the bucket meanwhile.
    assert!(kept < 2500 && kept >= USER_RATE.burst as usize, "{kept}");
    assert_eq!(of(1001), (50, 0));
}

#[test]
fn a_sink_that_stands_still_holds_up_nobody() {
    let (open, gate) = mpsc::sync_channel::<()>(0);
    let lines = Arc::<Mutex<Vec<String>>>::default();
    let written = Arc::clone(&lines);
    let log = AuditLog::with_writer(move |line: &str| {
        // The call fails once the gate is open for good.
        let _ = gate.recv();
        lock(&written).push(line.to_owned());
        Ok(())
    });
    let log = log.unwrap();
    let users = 20;
    for uid in 1..=users {
        for _ in 0..USER_RATE.burst {
            log.call(caller(uid), Operation::Status).decide(&Ok(()));
        }
    }
    drop(open);
    log.flush();
    // The queue may have been full when the flush was requested.
    let began = Instant::now();
    while parsed(&lines)
        .iter()
        .all(|record| record["dropped"].is_null())
    {
        assert!(began.elapsed() < 300 * TELL_EVERY, "no drop is recorded");
        log.flush();
    }
    let records = parsed(&lines);
    let dropped: u64 = records
        .iter()
        .filter_map(|record| record["dropped"].as_u64())
        .sum();
    let kept = records
        .iter()
        .filter(|record| record["dropped"].is_null())
        .count();
    assert_eq!(kept as u64 + dropped, u64::from(users * USER_RATE.burst));
}

#[test]
fn users_who_left_cost_nothing_and_too_many_share_a_rate() {
    let now = Instant::now();
    let mut rates = Rates::default();
    for uid in 0..2 * MOST_USERS {
        let uid = u32::try_from(uid).unwrap();
        rates.of(uid, now).take(USER_RATE, now);
    }
    assert_eq!(rates.0.len(), MOST_USERS + 1);
    let later = now + Duration::from_secs(600);
    let dropped = rates.take_dropped(later);
    let shared = MOST_USERS as u64 - u64::from(USER_RATE.burst);
    assert_eq!(dropped, [(OTHERS, shared)]);
    assert!(rates.0.is_empty());
}

#[test]
fn a_file_is_private_and_extended_and_nothing_else_is_opened() {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit");
    for _ in 0..2 {
        let log = AuditLog::start(&AuditSink::File(path.clone())).unwrap();
        log.call(caller(1), Operation::UpdateSettings)
            .decide(&Ok(()));
        log.flush();
    }
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text.lines().count(), 2, "{text}");
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let link = dir.path().join("link");
    symlink(&path, &link).unwrap();
    let fifo = dir.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for bad in [link, fifo, dir.path().to_owned()] {
        let error = AuditLog::start(&AuditSink::File(bad)).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("cannot write the audit record"),
            "{error}"
        );
    }
}
