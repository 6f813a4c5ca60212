//! Writes the calls of a synthetic program as an `.xtrace`, as a log of LLVM's flight data
//! recorder, or both: the input of the benchmarks.
//!
//! `cargo run --release -p xray-trace --example synthetic -- PROGRAM EVENTS together|in-turn
//! OUT.xtrace|OUT.fdr…`
//!
//! The functions have ids and names of functions in PROGRAM, which must have sleds, so that
//! `llvm-xray` finds them there, too. Four threads run together, or one after the other: `llvm-xray
//! account` needs all records of a log in one order of time, which only the second schedule gives.

mod walk;

use std::error::Error;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::iter::Peekable;
use std::path::{Path, PathBuf};

use xray_trace::analysis::{SPACING, Survey};
use xray_trace::container::{BlockEncoder, Writer};
use xray_trace::instr_map::{InstrMap, MapFunction};
use xray_trace::llvm::fdr::{self, FunctionKind, Record};
use xray_trace::llvm::header::{Header, LogType};
use xray_trace::model::{
    CallKind, ClockAnchor, Function, FunctionId, Module, ModuleId, Process, ProcessId, Thread,
    ThreadId, Ticks, Trace,
};

use self::walk::{Call, Program, Walk};

const PROGRAM: Program = Program {
    functions: 400,
    depth: 9,
    strays: 5,
    choices: 4,
};
const PID: u32 = 1000;
/// The thread ids in the order in which llvm-xray 19 iterates over them: by a hash. Its `account`
/// needs times that grow in that order.
const TIDS: [u32; 4] = [1004, 1003, 1001, 1002];
/// The rate of the counter.
const HERTZ: u64 = 2_600_000_000;
/// The counter at a trace's first event.
const START: u64 = 1_000_000_000;
/// Records of 8 bytes in a buffer of the runtime, which has 16 KiB. Five records of 16 bytes
/// precede them.
const PER_BUFFER: usize = (16 * 1024 - 80) / 8;

/// The schedule of the threads.
#[derive(Debug, Clone, Copy)]
enum Schedule {
    Together,
    InTurn,
}

/// The threads' events in one order of time.
struct Threads {
    walks: Vec<Peekable<Walk>>,
    schedule: Schedule,
    /// The begin of the current thread. The next one in turn begins at its end.
    base: u64,
    last: u64,
}

/// A file that is being written.
trait Output {
    /// An event of the thread with this index.
    fn call(&mut self, thread: usize, call: Call) -> Result<(), Box<dyn Error>>;

    /// Finishes the file. `last` is the time of the last event.
    fn finish(self: Box<Self>, last: u64) -> Result<(), Box<dyn Error>>;
}

struct Xtrace {
    path: PathBuf,
    writer: Writer<BufWriter<File>>,
    encoders: Vec<BlockEncoder>,
}

struct Log {
    writer: fdr::Writer<BufWriter<File>>,
    /// The ids of the functions in the instrumentation map.
    ids: Vec<u32>,
    /// The calls of each thread that are not written yet.
    pending: Vec<Vec<Call>>,
    buffers: u32,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [program, events, schedule, outputs @ ..] = &arguments[..] else {
        return Err("PROGRAM EVENTS together|in-turn OUT.xtrace|OUT.fdr…".into());
    };
    let schedule = match schedule.as_str() {
        "together" => Schedule::Together,
        "in-turn" => Schedule::InTurn,
        other => return Err(format!("neither together nor in-turn: {other}").into()),
    };
    let map = InstrMap::read(&fs::read(program)?)?;
    let functions = spread(&map)?;
    let mut outputs = outputs
        .iter()
        .map(|path| create(path, program, &map, &functions))
        .collect::<Result<Vec<_>, _>>()?;
    let mut threads = Threads::new(events.parse()?, schedule);
    while let Some((thread, call)) = threads.next() {
        for output in &mut outputs {
            output.call(thread, call)?;
        }
    }
    outputs
        .into_iter()
        .try_for_each(|output| output.finish(threads.last))
}

/// The file extension decides the format.
fn create(
    path: &str,
    program: &str,
    map: &InstrMap,
    functions: &[&MapFunction],
) -> Result<Box<dyn Output>, Box<dyn Error>> {
    Ok(match Path::new(path).extension().and_then(OsStr::to_str) {
        Some("xtrace") => Box::new(Xtrace::create(path, program, map, functions)?),
        Some("fdr") => Box::new(Log::create(path, functions)?),
        _ => return Err(format!("neither .xtrace nor .fdr: {path}").into()),
    })
}

/// As many functions as the walk needs, from all parts of the map.
fn spread(map: &InstrMap) -> Result<Vec<&MapFunction>, Box<dyn Error>> {
    let wanted = usize::try_from(PROGRAM.functions)?;
    let step = map.functions().len() / wanted;
    if step == 0 {
        return Err(format!("the program has less than {wanted} functions with sleds").into());
    }
    let spread = map.functions().iter().step_by(step).take(wanted);
    Ok(spread.collect())
}

// === impl Threads ===

impl Threads {
    fn new(events: u64, schedule: Schedule) -> Self {
        // The number of events of each thread is even.
        let each = events / TIDS.len() as u64 / 2 * 2;
        let walk = |number| Walk::new(PROGRAM, each, number).peekable();
        Self {
            walks: (0..TIDS.len() as u64).map(walk).collect(),
            schedule,
            base: START,
            last: START,
        }
    }

    /// The next event, and the thread's index.
    fn next(&mut self) -> Option<(usize, Call)> {
        let index = match self.schedule {
            Schedule::Together => {
                let walks = self.walks.iter_mut().enumerate();
                let next = walks.filter_map(|(index, walk)| Some((walk.peek()?.ticks, index)));
                next.min()?.1
            }
            Schedule::InTurn => {
                let mut walks = self.walks.iter_mut();
                walks.position(|walk| walk.peek().is_some())?
            }
        };
        let mut call = self.walks[index].next()?;
        call.ticks += self.base;
        self.last = call.ticks;
        let ended = self.walks[index].peek().is_none();
        if ended && matches!(self.schedule, Schedule::InTurn) {
            self.base = self.last;
        }
        Some((index, call))
    }
}

// === impl Xtrace ===

impl Xtrace {
    fn create(
        path: &str,
        program: &str,
        map: &InstrMap,
        functions: &[&MapFunction],
    ) -> Result<Self, Box<dyn Error>> {
        let file = BufWriter::with_capacity(1 << 18, File::create(path)?);
        let mut writer = Writer::new(file)?;
        let (process, module) = (ProcessId(0), ModuleId(0));
        writer.add(&Process {
            id: process,
            pid: PID,
            start_time_ticks: 1,
            command: "synthetic".to_owned(),
            executable: program.to_owned(),
            host: None,
        })?;
        writer.add(&Module {
            id: module,
            process,
            path: program.to_owned(),
            build_id: None,
            load_bias: 0,
            event_formats: Vec::new(),
        })?;
        for (id, function) in (0..).map(FunctionId).zip(functions) {
            writer.add(&Function {
                id,
                module,
                xray_id: function.id,
                address: function.address,
                symbol: function.symbol.as_ref().map(ToString::to_string),
                name: function.name.to_string(),
                source: None,
                sleds: u32::try_from(map.sleds_of(function).len())?,
            })?;
        }
        let threads: Vec<_> = (0..).map(ThreadId).zip(TIDS).collect();
        for &(id, tid) in &threads {
            writer.add(&Thread {
                id,
                process,
                tid,
                name: format!("worker {}", id.0),
            })?;
        }
        writer.add(&anchor(START))?;
        Ok(Self {
            path: path.into(),
            writer,
            encoders: threads
                .iter()
                .map(|&(id, _)| BlockEncoder::new(id))
                .collect(),
        })
    }
}

impl Output for Xtrace {
    fn call(&mut self, thread: usize, call: Call) -> Result<(), Box<dyn Error>> {
        let encoder = &mut self.encoders[thread];
        let function = FunctionId(call.function);
        encoder.push_call(Ticks(call.ticks), function, call.kind, None);
        if encoder.encoded_len() >= BlockEncoder::GOOD_LEN
            && let Some(block) = encoder.finish()
        {
            self.writer.block(&block)?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>, last: u64) -> Result<(), Box<dyn Error>> {
        for encoder in &mut self.encoders {
            if let Some(block) = encoder.finish() {
                self.writer.block(&block)?;
            }
        }
        self.writer.add(&anchor(last))?;
        self.writer.flush()?;
        // Finishes the file like a recording.
        let trace = Trace::open(File::open(&self.path)?)?;
        let index = Survey::new(&trace, SPACING).index;
        let end = Writer::going_on(self.writer.get_mut(), trace.totals().into());
        end.finish(&index)?;
        Ok(())
    }
}

fn anchor(ticks: u64) -> ClockAnchor {
    let ns = u128::from(ticks) * 1_000_000_000 / u128::from(HERTZ);
    let ns = u64::try_from(ns).unwrap_or(u64::MAX);
    ClockAnchor {
        ticks: Ticks(ticks),
        monotonic_ns: ns,
        wall_ns: ns,
    }
}

// === impl Log ===

impl Log {
    fn create(path: &str, functions: &[&MapFunction]) -> io::Result<Self> {
        let file = BufWriter::with_capacity(1 << 18, File::create(path)?);
        Ok(Self {
            writer: fdr::Writer::new(file, Header::new(LogType::Fdr, 5, HERTZ))?,
            ids: functions.iter().map(|function| function.id).collect(),
            pending: TIDS.map(|_| Vec::new()).to_vec(),
            buffers: 0,
        })
    }

    fn buffer(&mut self, thread: usize) -> Result<(), Box<dyn Error>> {
        let calls = &mut self.pending[thread];
        let Some(first) = calls.first() else {
            return Ok(());
        };
        let mut before = first.ticks;
        self.buffers += 1;
        let header = [
            Record::BufferExtents {
                size: 64 + 8 * calls.len() as u64,
            },
            Record::NewBuffer {
                tid: i32::try_from(TIDS[thread])?,
            },
            // llvm-xray mixes up the buffers of a thread unless both the seconds and the
            // microseconds grow.
            Record::WallTime {
                seconds: u64::from(self.buffers),
                micros: self.buffers,
            },
            Record::Pid {
                pid: i32::try_from(PID)?,
            },
            Record::NewCpu {
                cpu: u16::try_from(thread)?,
                tsc: before,
            },
        ];
        for record in &header {
            self.writer.record(record)?;
        }
        for call in calls.drain(..) {
            self.writer.record(&Record::Function {
                kind: match call.kind {
                    CallKind::Enter => FunctionKind::Enter,
                    CallKind::Exit => FunctionKind::Exit,
                    CallKind::TailExit => FunctionKind::TailExit,
                },
                function: self.ids[usize::try_from(call.function)?],
                delta: u32::try_from(call.ticks - before)?,
            })?;
            before = call.ticks;
        }
        Ok(())
    }
}

impl Output for Log {
    fn call(&mut self, thread: usize, call: Call) -> Result<(), Box<dyn Error>> {
        self.pending[thread].push(call);
        if self.pending[thread].len() >= PER_BUFFER {
            self.buffer(thread)?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>, _last: u64) -> Result<(), Box<dyn Error>> {
        for thread in 0..self.pending.len() {
            self.buffer(thread)?;
        }
        self.writer.into_inner().flush()?;
        Ok(())
    }
}
