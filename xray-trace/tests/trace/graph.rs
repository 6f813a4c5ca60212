//! GraphTest of LLVM: the vertices and edges of a call graph, each once, with their data.

use std::collections::BTreeMap;

use crate::common::{Enter, Exit, call, trace};
use xray_trace::analysis::{Filter, Graph, Siblings};
use xray_trace::model::{Event, FunctionId, Trace};

const NAMES: [&str; 7] = ["f0", "f1", "f2", "f3", "f4", "f5", "f6"];

/// Upstream's edges.
const EDGES: [(u32, u32); 7] = [(1, 2), (2, 3), (6, 3), (4, 6), (2, 4), (2, 5), (4, 5)];

fn graph(trace: &Trace) -> Graph {
    Graph::new(trace, &Filter::default(), Siblings::Closed)
}

/// f1 calls f2, which calls f3, f4 and f5; f4 calls f6, which calls f3, and f5. Each call of `n` by
/// `m` takes 100 m + n besides its callees.
fn test_trace() -> Trace {
    fn calls(caller: u32, callee: u32, at: &mut u64, events: &mut Vec<Event>) {
        events.push(call(*at, callee, Enter));
        *at += u64::from(100 * caller + callee);
        for (from, to) in EDGES {
            if from == callee {
                calls(from, to, at, events);
            }
        }
        events.push(call(*at, callee, Exit));
    }
    let mut events = Vec::new();
    calls(0, 1, &mut 1000, &mut events);
    trace(&NAMES, &[&events])
}

fn own(caller: u32, callee: u32) -> u64 {
    let called = EDGES.iter().filter(|(from, _)| *from == callee);
    u64::from(100 * caller + callee) + called.map(|(from, to)| own(*from, *to)).sum::<u64>()
}

/// Every edge occurs once, with its time, and connects its two functions.
#[track_caller]
fn check_edges(graph: &Graph) {
    let edges: BTreeMap<_, _> = graph
        .edges
        .iter()
        .map(|edge| {
            let caller = edge.caller.map(|id| id.0);
            assert_eq!((edge.calls, edge.unfinished), (1, 0));
            ((caller.unwrap_or(0), edge.callee.0), edge.sum_ns)
        })
        .collect();
    assert_eq!(edges.len(), graph.edges.len());
    let expected = EDGES.iter().chain(&[(0, 1)]);
    let expected = expected.map(|(caller, callee)| ((*caller, *callee), own(*caller, *callee)));
    assert_eq!(edges, expected.collect());
    let outgoing = |from| edges.keys().filter(|edge| edge.0 == from).count();
    let incoming = |to| edges.keys().filter(|edge| edge.1 == to).count();
    assert_eq!([1, 2, 3, 4, 5, 6].map(outgoing), [1, 3, 0, 2, 0, 1]);
    assert_eq!([1, 2, 3, 4, 5, 6].map(incoming), [1, 1, 2, 1, 2, 1]);
}

/// Every vertex occurs once, with the sums of all edges that lead to it.
#[track_caller]
fn check_vertices(graph: &Graph) {
    let vertices: Vec<_> = graph
        .functions
        .iter()
        .map(|row| (row.subject.function().unwrap().0, row.calls, row.sum_ns))
        .collect();
    let expected = [1, 2, 3, 4, 5, 6].map(|id| {
        let edges = graph.edges.iter().filter(|edge| edge.callee.0 == id);
        let (calls, sums): (Vec<_>, Vec<_>) = edges.map(|edge| (edge.calls, edge.sum_ns)).unzip();
        (id, calls.iter().sum(), sums.iter().sum())
    });
    assert_eq!(vertices, expected);
    assert_eq!(vertices[2].1, 2);
}

#[test]
fn graph_edge() {
    check_edges(&graph(&test_trace()));
}

#[test]
fn graph_vertex() {
    check_vertices(&graph(&test_trace()));
}

/// TestCopyConstructor, TestCopyAssign and TestMoveConstructor.
#[test]
fn copies_of_a_graph() {
    let graph = graph(&test_trace());
    let copy = graph.clone();
    assert_eq!(copy, graph);
    let moved = graph;
    for graph in [&copy, &moved] {
        check_edges(graph);
        check_vertices(graph);
    }
}

/// TestConstruction.
#[test]
fn construction_of_a_graph() {
    let graph = graph(&trace(&NAMES, &[]));
    assert!(graph.edges.is_empty() && graph.functions.is_empty());
    assert_eq!(graph.beyond, 0);
}

/// TestiVertexAccessOperator: a vertex that no function calls.
#[test]
fn vertex_access_operator() {
    let graph = graph(&trace(&NAMES, &[&[call(0, 4, Enter), call(7, 4, Exit)]]));
    let [vertex] = &graph.functions[..] else {
        panic!("{graph:?}");
    };
    assert_eq!(vertex.subject.function(), Some(FunctionId(4)));
    assert_eq!((vertex.calls, vertex.sum_ns), (1, 7));
    assert!(graph.edges.iter().all(|edge| edge.caller.is_none()));
}

/// TestEdgeAccessOperator: an edge from a vertex to itself.
#[test]
fn edge_access_operator() {
    let recursion = [
        call(0, 4, Enter),
        call(2, 4, Enter),
        call(5, 4, Exit),
        call(9, 4, Exit),
    ];
    let graph = graph(&trace(&NAMES, &[&recursion]));
    let edges = graph.edges.iter();
    let edges: Vec<_> = edges
        .map(|edge| (edge.caller.map(|id| id.0), edge.callee.0, edge.sum_ns))
        .collect();
    assert_eq!(edges, [(None, 4, 9), (Some(4), 4, 3)]);
    assert_eq!(graph.functions.len(), 1);
    assert_eq!(
        (graph.functions[0].calls, graph.functions[0].sum_ns),
        (2, 12)
    );
}
