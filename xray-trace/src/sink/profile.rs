//! The profile of LLVM's profiling mode, as LLVM's own loader (`llvm/lib/XRay/Profile.cpp`) reads
//! it: without a file header, and with one block for each path of calls. A reader of blocks with
//! several paths also reads these. The format has calls and self time of each path, and no rate of
//! the counter: a tick is a nanosecond here.

use std::io::{self, Write};

use super::kernel_ids::KernelIds;
use super::left_out::LeftOut;
use super::stacks::StackTrie;
use super::{ProfileSink, Report, Sink};
use crate::analysis::{Step, Steps};
use crate::llvm::ByteOrder;
use crate::llvm::profile::{BlockHeader, write_block};
use crate::model::{NoXrayId, Profile as Sums, ThreadId, Trace, XrayIds};

/// LLVM's profile.
#[derive(Debug, Clone, Copy)]
pub struct Profile;

// === impl Profile ===

impl Sink for Profile {
    fn name(&self) -> &'static str {
        "profile"
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["xrayprofile"]
    }

    fn about(&self) -> &'static str {
        "calls and self time by stack and thread, for LLVM's loader of profiles"
    }

    fn is_text(&self) -> bool {
        false
    }

    fn write(&self, trace: &Trace, output: &mut dyn Write) -> io::Result<Report> {
        let (mut report, mut left_out) = (Report::default(), LeftOut::default());
        let mut stacks = StackTrie::default();
        for mut steps in Steps::of_threads(trace) {
            let thread = steps.thread().0;
            for step in &mut steps {
                left_out.see(&step);
                match step {
                    Step::Enter(open) => {
                        stacks.enter(thread, &open);
                    }
                    Step::Leave(call) => stacks.leave(&call),
                    Step::Data(_) | Step::Lost { .. } => {}
                }
            }
            report.leave_out_of_steps(&steps);
        }
        blocks(trace, &stacks, output, &mut report)?;
        left_out.tell(&mut report);
        report.leave_out_unplaced(trace);
        report.leave_out_kernel_events(trace);
        Ok(report)
    }

    fn of_profile(&self) -> Option<&dyn ProfileSink> {
        Some(self)
    }
}

impl ProfileSink for Profile {
    fn write(&self, profile: &Sums, output: &mut dyn Write) -> io::Result<Report> {
        let stacks = StackTrie::of_profile(profile, |thread| thread.0);
        let mut report = Report::default();
        blocks(profile.tables(), &stacks, output, &mut report)?;
        Ok(report)
    }
}

fn blocks(
    trace: &Trace,
    stacks: &StackTrie,
    output: &mut dyn Write,
    report: &mut Report,
) -> io::Result<()> {
    let ids = XrayIds::new(trace);
    let (mut unknown, mut too_great) = (0_u64, 0_u64);
    let mut number = 0_u32;
    for node in stacks.nodes().iter().filter(|node| node.calls > 0) {
        let (stack, thread) = stacks.stack(node);
        let path: Result<Vec<i32>, NoXrayId> = stack
            .into_iter()
            .map(|function| match ids.packed(function)?.cast_signed() {
                // An id of 0 would end the path.
                0 => Err(NoXrayId::Unknown),
                id => Ok(id),
            })
            .collect();
        let path = match path {
            Ok(path) => path,
            Err(NoXrayId::Unknown) => {
                unknown = unknown.saturating_add(node.calls);
                continue;
            }
            Err(NoXrayId::TooGreat) => {
                too_great = too_great.saturating_add(node.calls);
                continue;
            }
        };
        let block = BlockHeader {
            number,
            thread: KernelIds::of(trace, ThreadId(thread)).tid.into(),
        };
        let paths = [(&*path, node.calls, node.self_ns)];
        write_block(block, paths.into_iter(), ByteOrder::Little, output)?;
        number = number.wrapping_add(1);
        report.calls = report.calls.saturating_add(node.calls);
    }
    stacks.tell(report);
    report.leave_out("calls of functions whose id does not fit 32 bits (more than 256 modules, or 2^24 functions in one)", too_great);
    report.leave_out(
        "calls within functions that the trace does not describe",
        unknown,
    );
    Ok(())
}
