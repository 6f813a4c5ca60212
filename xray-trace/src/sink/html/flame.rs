//! The flame graph: the stacks with the most time. A page does not contain stacks beyond its limit.
//!
//! A stack has at least as much time as each of its continuations, so the caller of a kept stack is
//! kept, too. The stacks that are left out below a kept one are summed into one more continuation
//! of it, so that times add up.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::document::Document;
use super::limits;
use super::names::Names;
use crate::analysis::{StackNode, StackTrie};

/// A frame, or the sum of the frames that are left out below one.
#[derive(Debug, Default, Clone, Copy)]
struct Frame {
    /// The distance to the caller's frame, which comes before this one; 0 for an outermost frame.
    back: u64,
    name: u64,
    calls: u64,
    unfinished: u64,
    self_ns: u64,
    /// The number of stacks that are left out; 0 for a frame.
    stacks: u64,
}

pub(super) fn write(stacks: &StackTrie, names: &mut Names, document: &mut Document) {
    let frames = frames(stacks, names, limits::STACKS);
    let column = |document: &mut Document, name: &str, value: fn(&Frame) -> u64| {
        document.column(name, frames.iter().map(value));
    };
    column(document, "frame.back", |frame| frame.back);
    column(document, "frame.name", |frame| frame.name);
    column(document, "frame.calls", |frame| frame.calls);
    column(document, "frame.unfinished", |frame| frame.unfinished);
    column(document, "frame.self", |frame| frame.self_ns);
    column(document, "frame.stacks", |frame| frame.stacks);
    document.set("stacksTogether", stacks.beyond().into());
}

fn frames(stacks: &StackTrie, names: &mut Names, most: usize) -> Vec<Frame> {
    let nodes = stacks.nodes();
    let counts = |node: &StackNode| node.counts[0];
    let mut order: Vec<usize> = (0..nodes.len()).collect();
    order.sort_by_key(|at| (Reverse(counts(&nodes[*at]).total_ns), *at));
    let mut kept = vec![false; nodes.len()];
    for at in order.into_iter().take(most) {
        kept[at] = true;
    }
    // By caller, as the index of a node + 1; 0 for no caller.
    let mut left_out = BTreeMap::<usize, Frame>::new();
    let mut places = vec![0_usize; nodes.len()];
    let mut frames = Vec::new();
    for (at, node) in nodes.iter().enumerate() {
        let counts = counts(node);
        if kept[at] {
            let back = node
                .parent
                .map_or(0, |caller| frames.len() - places[caller]);
            places[at] = frames.len();
            frames.push(Frame {
                back: back as u64,
                name: names.number(stacks.name(node)),
                calls: counts.calls,
                unfinished: counts.unfinished,
                self_ns: counts.self_ns,
                stacks: 0,
            });
            continue;
        }
        let mut caller = node.parent;
        while let Some(outer) = caller.filter(|outer| !kept[*outer]) {
            caller = nodes[outer].parent;
        }
        let sum = left_out
            .entry(caller.map_or(0, |caller| caller + 1))
            .or_default();
        sum.calls = sum.calls.saturating_add(counts.calls);
        sum.unfinished = sum.unfinished.saturating_add(counts.unfinished);
        sum.self_ns = sum.self_ns.saturating_add(counts.self_ns);
        sum.stacks += 1;
    }
    for (caller, mut sum) in left_out {
        let back = caller
            .checked_sub(1)
            .map_or(0, |caller| frames.len() - places[caller]);
        sum.back = back as u64;
        frames.push(sum);
    }
    frames
}
