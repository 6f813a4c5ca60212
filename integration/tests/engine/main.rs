//! The engine against real programs: its records, its leftovers, its refusals.
//!
//! Each test starts programs of its own and drives `xrayd`'s library in this process. If the tracer
//! has to die or to be another user, the library runs in a copy of this process. Numbers like (P22)
//! name the pitfall that a test answers. `XRAYD_SOAK=1` runs the long tests at full length.

mod adoption;
mod arguments;
mod blocking;
mod budget;
mod choices;
mod coexistence;
mod confined;
mod departure;
mod endings;
mod events;
mod failures;
mod files;
mod filters;
mod flight;
mod following;
mod forks;
mod groups;
mod growth;
mod hostile;
mod hugetext;
mod killed;
mod kinds;
mod launching;
mod leases;
mod libraries;
mod library_events;
mod llvm;
mod memory;
mod profile;
mod programs;
mod rebirth;
mod refusals;
mod registers;
mod rewriting;
mod rseq;
mod sharing;
mod signals;
mod storm;
mod sums_and_traces;
mod support;
mod switching;
mod tailcond;
mod threads;
mod tracer;
mod tracers;
mod truth;
mod types;
mod unprivileged;
mod unwinding;
