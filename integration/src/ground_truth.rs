//! The report of the program `counted` on its own calls. The tests compare it with a trace.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

/// Everything that one run of `counted` did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroundTruth {
    /// Demangled names without parameters. The index of a function in here is its number elsewhere.
    pub functions: Vec<String>,
    /// One record for each worker thread that ever lived. A thread id can occur twice if the kernel
    /// used it again.
    pub threads: Vec<ThreadTruth>,
}

/// Everything that one thread did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadTruth {
    /// The kernel's thread id.
    pub tid: i32,
    /// All entries, exits and tail exits.
    pub events: u64,
    /// [`SequenceHash`] over all of them in order.
    pub hash: u64,
    /// Calls of each function.
    pub calls: Vec<u64>,
    /// The first events in full, as many as `--first` asked for.
    pub first: Vec<CallEvent>,
}

/// One event as the program saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallEvent {
    /// The kind of the event.
    pub kind: EventKind,
    /// The function's index in [`GroundTruth::functions`].
    pub function: usize,
}

/// The kind of an event of `counted`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The function was entered.
    Entry,
    /// It returned.
    Exit,
    /// It ended in a call of another function.
    TailExit,
}

/// The order of events as one number: FNV-1a, 64 bits, over the kind and the function of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceHash(u64);

// === impl GroundTruth ===

impl GroundTruth {
    /// Reads the line that `counted` prints at its end, "result {…}".
    ///
    /// # Errors
    /// The line has another form.
    pub fn parse(line: &str) -> Result<GroundTruth> {
        let json = line.strip_prefix("result ").context("not a result line")?;
        let value: Value = serde_json::from_str(json).context("the result is not JSON")?;
        let functions = array(&value, "functions")?
            .iter()
            .map(|name| {
                name.as_str()
                    .map(str::to_owned)
                    .context("a function without a name")
            })
            .collect::<Result<Vec<_>>>()?;
        let threads = array(&value, "threads")?
            .iter()
            .map(ThreadTruth::from_json)
            .collect::<Result<Vec<_>>>()?;
        for thread in &threads {
            ensure!(
                thread.calls.len() == functions.len(),
                "thread {} counts {} functions of {}",
                thread.tid,
                thread.calls.len(),
                functions.len()
            );
        }
        Ok(GroundTruth { functions, threads })
    }

    /// All events of all threads.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.threads.iter().map(|thread| thread.events).sum()
    }

    /// Calls of each function over all threads, by its index.
    #[must_use]
    pub fn calls(&self) -> Vec<u64> {
        let mut sums = vec![0; self.functions.len()];
        for thread in &self.threads {
            for (sum, calls) in sums.iter_mut().zip(&thread.calls) {
                *sum += calls;
            }
        }
        sums
    }

    /// The index of a function by its demangled name, with or without parameters.
    #[must_use]
    pub fn function(&self, name: &str) -> Option<usize> {
        let bare = name.split('(').next().unwrap_or(name);
        self.functions.iter().position(|function| function == bare)
    }
}

// === impl ThreadTruth ===

impl ThreadTruth {
    fn from_json(value: &Value) -> Result<ThreadTruth> {
        let number = |key: &str| {
            value
                .get(key)
                .and_then(Value::as_u64)
                .with_context(|| format!("no number {key:?}"))
        };
        let text = |key: &str| {
            value
                .get(key)
                .and_then(Value::as_str)
                .with_context(|| format!("no text {key:?}"))
        };
        Ok(ThreadTruth {
            tid: i32::try_from(number("tid")?).context("not a thread id")?,
            events: number("events")?,
            hash: u64::from_str_radix(text("hash")?, 16).context("not a hash")?,
            calls: array(value, "calls")?
                .iter()
                .map(|calls| calls.as_u64().context("a count that is no number"))
                .collect::<Result<Vec<_>>>()?,
            first: text("first")?
                .split_whitespace()
                .map(CallEvent::parse)
                .collect::<Result<Vec<_>>>()?,
        })
    }
}

// === impl CallEvent ===

impl CallEvent {
    /// Reads for example "t14": function 14 ended in a tail call.
    fn parse(text: &str) -> Result<CallEvent> {
        let (kind, function) = text.split_at_checked(1).context("an empty event")?;
        let kind = match kind {
            "e" => EventKind::Entry,
            "x" => EventKind::Exit,
            "t" => EventKind::TailExit,
            other => anyhow::bail!("an event of kind {other:?}"),
        };
        Ok(CallEvent {
            kind,
            function: function.parse().context("not a function's index")?,
        })
    }
}

// === impl SequenceHash ===

impl SequenceHash {
    /// The hash of no event at all.
    #[must_use]
    pub const fn new() -> SequenceHash {
        SequenceHash(0xcbf2_9ce4_8422_2325)
    }

    /// Adds one event.
    pub fn push(&mut self, event: CallEvent) {
        let kind = match event.kind {
            EventKind::Entry => 0,
            EventKind::Exit => 1,
            EventKind::TailExit => 2,
        };
        for byte in [kind, event.function as u64] {
            self.0 = (self.0 ^ byte).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// The number, as in [`ThreadTruth::hash`].
    #[must_use]
    pub const fn value(self) -> u64 {
        self.0
    }
}

impl Default for SequenceHash {
    fn default() -> SequenceHash {
        SequenceHash::new()
    }
}

fn array<'a>(value: &'a Value, key: &str) -> Result<&'a Vec<Value>> {
    value
        .get(key)
        .and_then(Value::as_array)
        .with_context(|| format!("no list {key:?}"))
}
