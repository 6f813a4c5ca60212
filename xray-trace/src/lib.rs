//! XRay instrumentation maps, the trace model, the `.xtrace` format, foreign formats, and analyses.
//! The library takes bytes and files; it does not trace processes.
//!
//! # For writers of tools
//!
//! A tool that reads traces needs three modules. [`source::open`] opens a trace of any format as a
//! [`model::Trace`], which has the tables of processes, functions and threads, and the packed
//! events. [`analysis::Steps`] follows a thread through its calls: it matches entries with exits,
//! and closes calls that were left by an exception. The other analyses have the numbers of the
//! commands of `xrayctl`.
//!
#![cfg_attr(feature = "import", doc = "```")]
#![cfg_attr(not(feature = "import"), doc = "```ignore")]
//! use std::collections::BTreeMap;
//! use std::fs::File;
//!
//! use xray_trace::analysis::{Step, Steps};
//! use xray_trace::source::{Options, open};
//!
//! // The longest call of each function, in nanoseconds.
//! fn longest(path: &str) -> Result<BTreeMap<String, u64>, Box<dyn std::error::Error>> {
//!     let trace = open(File::open(path)?, &Options::default())?.trace;
//!     let mut longest = BTreeMap::new();
//!     for mut steps in Steps::of_threads(&trace) {
//!         while let Some(step) = steps.next() {
//!             if let Step::Leave(call) = step {
//!                 let name = trace.function_name(call.open.function).into_owned();
//!                 let known = longest.entry(name).or_insert(0);
//!                 *known = call.duration_ns().max(*known);
//!             }
//!         }
//!     }
//!     Ok(longest)
//! }
//!
//! let longest = longest("tests/golden/v1/calls.xtrace")?;
//! assert!(longest["shop::receive(int)"] > longest["shop::tax(int)"]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A tool that writes traces needs [`container::Writer`] for the tables, and a
//! [`container::BlockEncoder`] for the events of each thread, in order of time. Everything that
//! `xrayctl` does with a trace then works with the file.
//!
//! ```
//! use std::fs::File;
//! use std::io::BufWriter;
//!
//! use xray_trace::FileAddr;
//! use xray_trace::container::{BlockEncoder, Writer};
//! use xray_trace::model::{
//!     CallKind, ClockAnchor, Function, FunctionId, Module, ModuleId, Process, ProcessId, Thread,
//!     ThreadId, Ticks,
//! };
//!
//! fn write(path: &std::path::Path) -> std::io::Result<()> {
//!     let mut writer = Writer::new(BufWriter::new(File::create(path)?))?;
//!     writer.add(&Process {
//!         id: ProcessId(0),
//!         pid: 4242,
//!         start_time_ticks: 77,
//!         command: "simulator".to_owned(),
//!         executable: "/usr/bin/simulator".to_owned(),
//!         host: None,
//!     })?;
//!     writer.add(&Module {
//!         id: ModuleId(0),
//!         process: ProcessId(0),
//!         path: "/usr/bin/simulator".to_owned(),
//!         build_id: None,
//!         load_bias: 0,
//!         event_formats: Vec::new(),
//!     })?;
//!     writer.add(&Function {
//!         id: FunctionId(0),
//!         module: ModuleId(0),
//!         xray_id: 1,
//!         address: FileAddr(0x1000),
//!         symbol: None,
//!         name: "step".into(),
//!         source: None,
//!         sleds: 2,
//!     })?;
//!     writer.add(&Thread {
//!         id: ThreadId(0),
//!         process: ProcessId(0),
//!         tid: 4242,
//!         name: "main".to_owned(),
//!     })?;
//!     // Two anchors give the rate of the counter: here a tick is a nanosecond.
//!     for ticks in [0, 1_000_000_000] {
//!         writer.add(&ClockAnchor {
//!             ticks: Ticks(ticks),
//!             monotonic_ns: ticks,
//!             wall_ns: ticks,
//!         })?;
//!     }
//!     let mut encoder = BlockEncoder::new(ThreadId(0));
//!     for start in (0..10).map(|number| number * 1000) {
//!         encoder.push_call(Ticks(start), FunctionId(0), CallKind::Enter, None);
//!         encoder.push_call(Ticks(start + 300), FunctionId(0), CallKind::Exit, None);
//!         if encoder.encoded_len() >= BlockEncoder::GOOD_LEN {
//!             if let Some(block) = encoder.finish() {
//!                 writer.block(&block)?;
//!             }
//!         }
//!     }
//!     if let Some(block) = encoder.finish() {
//!         writer.block(&block)?;
//!     }
//!     writer.finish(&[])?;
//!     Ok(())
//! }
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("simulated.xtrace");
//! write(&path)?;
//! # #[cfg(feature = "import")] {
//! # let file = File::open(&path)?;
//! # let trace = xray_trace::source::open(file, &xray_trace::source::Options::default())?.trace;
//! # assert_eq!(trace.totals().calls, 20);
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The format itself is in docs/trace-format.md, for tools in other languages. These parts of the
//! library are meant for tools, and change only together with the project's version: [`source`],
//! [`model`], [`container`], [`analysis`], [`sink`], [`llvm`], [`instr_map`] and [`event_format`].

pub mod analysis;
pub mod container;
pub mod event_format;
pub mod instr_map;
pub mod llvm;
pub mod model;
pub mod sink;
#[cfg(feature = "import")]
pub mod source;

mod addr;
mod function_map;
mod yaml_scalar;

pub use addr::FileAddr;
