"""A grid in this process, which calls Flower's ClientApp as its engines do."""

from flwr.app import Context, Error, Message, RecordDict


class LocalGrid:
    """Nodes with their contexts; `fails` are nodes whose app raises, `gone` those that left."""

    def __init__(self, app, node_configs):
        self.app, self.fails, self.gone, self.asked = app, {}, set(), []
        self.contexts = {
            100 + i: Context(1, 100 + i, config, RecordDict(), {})
            for i, config in enumerate(node_configs)
        }

    def get_node_ids(self):
        return [node for node in self.contexts if node not in self.gone]

    def send_and_receive(self, messages, *, timeout=None):
        return [self._answer(message) for message in messages]

    def _answer(self, message):
        node, kind = message.metadata.dst_node_id, message.metadata.message_type
        self.asked.append((kind, node))
        if node in self.gone:
            return Message(Error(5, 'gone'), reply_to=message)
        try:
            if kind == 'train' and node in self.fails:
                raise RuntimeError(self.fails[node])
            return self.app(message, self.contexts[node])
        except Exception as error:
            return Message(Error(2, f'{type(error).__name__}: {error}'), reply_to=message)
