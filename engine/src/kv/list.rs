//! A doubly linked list over the numbers `0..len`, every operation in constant time: the order in which free blocks go.

/// Which of the numbers are in the list, and in which order.
#[derive(Debug)]
pub(super) struct List {
    /// One link for each number, and one that stands before the first and after the last.
    links: Vec<Link>,
    len: usize,
}

#[derive(Debug, Clone, Copy)]
struct Link {
    previous: u32,
    next: u32,
}

impl List {
    /// An empty list of numbers below `bound`.
    pub(super) fn new(bound: usize) -> Self {
        // A number that is not in the list points to itself, and so does the end of an empty list.
        let links = (0..=bound as u32).map(|number| Link {
            previous: number,
            next: number,
        });
        Self {
            links: links.collect(),
            len: 0,
        }
    }

    fn end(&self) -> u32 {
        self.links.len() as u32 - 1
    }

    fn link(&self, number: u32) -> Link {
        self.links[number as usize]
    }

    /// Numbers in the list.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Whether `number` is in it.
    pub(super) fn contains(&self, number: u32) -> bool {
        self.link(number).next != number
    }

    /// Puts `number`, which is not in it, at the end.
    pub(super) fn push_back(&mut self, number: u32) {
        self.insert_before(self.end(), number);
    }

    /// Puts `number`, which is not in it, at the beginning.
    pub(super) fn push_front(&mut self, number: u32) {
        self.insert_before(self.link(self.end()).next, number);
    }

    fn insert_before(&mut self, next: u32, number: u32) {
        debug_assert!(!self.contains(number), "block {number} is in the list already");
        let previous = self.link(next).previous;
        self.links[number as usize] = Link { previous, next };
        self.links[previous as usize].next = number;
        self.links[next as usize].previous = number;
        self.len += 1;
    }

    /// Takes `number`, which is in it, out.
    pub(super) fn remove(&mut self, number: u32) {
        debug_assert!(self.contains(number), "block {number} is not in the list");
        let Link { previous, next } = self.link(number);
        self.links[previous as usize].next = next;
        self.links[next as usize].previous = previous;
        self.links[number as usize] = Link {
            previous: number,
            next: number,
        };
        self.len -= 1;
    }

    /// Takes the first out.
    pub(super) fn pop_front(&mut self) -> Option<u32> {
        let first = self.link(self.end()).next;
        (first != self.end()).then(|| {
            self.remove(first);
            first
        })
    }

    /// The numbers in the list, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let end = self.end();
        std::iter::successors(Some(self.link(end).next), move |&number| {
            Some(self.link(number).next)
        })
        .take_while(move |&number| number != end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_order_through_every_operation() {
        let mut list = List::new(5);
        assert_eq!(list.pop_front(), None);
        list.push_back(3);
        list.push_back(1);
        list.push_front(4);
        list.push_back(0);
        assert_eq!(list.iter().collect::<Vec<_>>(), [4, 3, 1, 0]);
        list.remove(3);
        list.remove(0);
        assert_eq!(list.iter().collect::<Vec<_>>(), [4, 1]);
        assert!(list.contains(1) && !list.contains(3) && !list.contains(2));
        list.push_front(3);
        assert_eq!(
            (list.pop_front(), list.pop_front(), list.len()),
            (Some(3), Some(4), 1)
        );
        assert_eq!(
            (list.pop_front(), list.pop_front(), list.len()),
            (Some(1), None, 0)
        );
    }
}
