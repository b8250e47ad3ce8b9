//! The automaton of Aho and Corasick ("Efficient string matching", 1975), built for one request.
//!
//! A state stands for the longest end of the text that begins a sequence. Its *depth* is how long that is, which is
//! how much of the text has to be held back. General-purpose crates do not tell the depth, and they prepare for long
//! haystacks: for four usual sequences this one is built in 1.4 us, the `aho-corasick` crate's smallest automaton in
//! 20 to 60 us (both native, same process).
//!
//! Nodes are laid out breadth first, so the children of a node stand side by side, in the order of their bytes, and
//! are found by binary search. A node at which a sequence is complete has no children: the text ends there.

/// A state of the automaton.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State(u32);

/// A sequence that is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Its place in the list.
    pub sequence: u32,
    /// Its length in bytes.
    pub length: usize,
}

/// Stands for "no sequence".
const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Node {
    /// The byte that leads here from the parent.
    byte: u8,
    /// How many children there are: up to 256.
    children: u16,
    /// The first child; the others follow.
    first_child: u32,
    /// Bytes from the root.
    depth: u32,
    /// The state of the longest proper end of what this one stands for.
    fail: u32,
    /// A sequence that begins with what this node stands for.
    along: u32,
    /// The longest sequence that is complete here.
    complete: u32,
}

/// The sequences of one request.
#[derive(Debug)]
pub struct Automaton {
    sequences: Vec<String>,
    nodes: Vec<Node>,
    /// The bytes that lead away from the root, a bit for each.
    first_bytes: [u64; 4],
    /// Transitions looked up so far, so that the tests can prove the work linear.
    #[cfg(test)]
    pub(crate) lookups: std::cell::Cell<usize>,
}

impl Automaton {
    /// The state before any text.
    pub const START: State = State(0);

    /// Builds the automaton. Empty sequences never match.
    ///
    /// Panics if the sequences are longer than 4 GiB together.
    pub fn new(sequences: Vec<String>) -> Self {
        let total = sequences.iter().map(String::len).sum::<usize>();
        assert!(total < NONE as usize && sequences.len() < NONE as usize);
        let mut automaton = Self {
            sequences,
            nodes: Vec::with_capacity(total + 1),
            first_bytes: [0; 4],
            #[cfg(test)]
            lookups: std::cell::Cell::new(0),
        };
        automaton.grow();
        automaton
    }

    /// Makes the nodes, breadth first. The sequences below a node are neighbours in the sorted list.
    fn grow(&mut self) {
        let mut sorted: Vec<u32> = (0..self.sequences.len() as u32)
            .filter(|&i| !self.sequences[i as usize].is_empty())
            .collect();
        // Stable: of equal sequences the first listed comes first.
        sorted.sort_by(|&a, &b| self.sequences[a as usize].cmp(&self.sequences[b as usize]));

        self.nodes.push(Node {
            byte: 0,
            children: 0,
            first_child: 1,
            depth: 0,
            fail: 0,
            along: NONE,
            complete: NONE,
        });
        // For each node the range of `sorted` that is below it.
        let mut below = Vec::with_capacity(self.nodes.capacity());
        below.push((0, sorted.len()));
        let mut parent = 0;
        while parent < self.nodes.len() {
            let (mut from, to) = below[parent];
            let depth = self.nodes[parent].depth as usize;
            self.nodes[parent].first_child = self.nodes.len() as u32;
            if self.nodes[parent].complete != NONE {
                from = to;
            }
            while from < to {
                let along = sorted[from];
                let byte = self.byte_at(along, depth);
                let next = (from..to)
                    .find(|&i| self.byte_at(sorted[i], depth) != byte)
                    .unwrap_or(to);
                let fail = if parent == 0 {
                    0
                } else {
                    self.step(self.nodes[parent].fail, byte)
                };
                let complete = if self.sequences[along as usize].len() == depth + 1 {
                    along
                } else {
                    self.nodes[fail as usize].complete
                };
                self.nodes[parent].children += 1;
                self.nodes.push(Node {
                    byte,
                    children: 0,
                    first_child: 0,
                    depth: depth as u32 + 1,
                    fail,
                    along,
                    complete,
                });
                below.push((from, next));
                from = next;
            }
            parent += 1;
        }
        for child in &self.nodes[1..][..self.nodes[0].children as usize] {
            self.first_bytes[child.byte as usize / 64] |= 1 << (child.byte % 64);
        }
        #[cfg(test)]
        self.lookups.set(0);
    }

    fn byte_at(&self, sequence: u32, depth: usize) -> u8 {
        self.sequences[sequence as usize].as_bytes()[depth]
    }

    fn child(&self, node: u32, byte: u8) -> Option<u32> {
        #[cfg(test)]
        self.lookups.set(self.lookups.get() + 1);
        let node = &self.nodes[node as usize];
        let children = &self.nodes[node.first_child as usize..][..node.children as usize];
        let place = children.binary_search_by_key(&byte, |child| child.byte).ok()?;
        Some(node.first_child + place as u32)
    }

    fn step(&self, mut node: u32, byte: u8) -> u32 {
        loop {
            if let Some(child) = self.child(node, byte) {
                return child;
            }
            if node == 0 {
                return 0;
            }
            node = self.nodes[node as usize].fail;
        }
    }

    /// Reads on from `state` to the end of `text`, or to the first place at which a sequence is complete: then the
    /// result holds that sequence and how many bytes of `text` were read.
    pub fn read(&self, state: State, text: &str) -> (State, Option<(Found, usize)>) {
        let mut node = state.0;
        for (i, &byte) in text.as_bytes().iter().enumerate() {
            if node == 0 && self.first_bytes[byte as usize / 64] & (1 << (byte % 64)) == 0 {
                continue;
            }
            node = self.step(node, byte);
            let sequence = self.nodes[node as usize].complete;
            if sequence != NONE {
                let length = self.sequences[sequence as usize].len();
                return (State(node), Some((Found { sequence, length }, i + 1)));
            }
        }
        (State(node), None)
    }

    /// The end of the text that may still become part of an occurrence. It begins a sequence, so it need not be
    /// stored apart from it.
    pub fn held(&self, state: State) -> &str {
        let node = &self.nodes[state.0 as usize];
        match node.along {
            NONE => "",
            along => &self.sequences[along as usize][..node.depth as usize],
        }
    }
}
